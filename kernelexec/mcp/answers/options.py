"""The form of an answer: how pictures and files come, and how much of the record, as operator and client choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from fastmcp import Context

from kernelexec.mcp.server_options import PicturePlace, ServerOptions

#: The key in the ``_meta`` of a request by which a program asks for all fields: its value is ``whole``.
RECORD_META = "kernelexec/record"
#: The first protocol revision with sounds; revisions are dates.
_SOUNDS_VERSION = "2025-03-26"


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Options of one answer: where its pictures are, what else it may have, and whether the client has a tool for undo."""

    pictures: PicturePlace = "both"
    has_links: bool = False
    has_sounds: bool = False
    has_whole_record: bool = False
    has_undo: bool = False

    @classmethod
    def of(cls, context: Context, options: ServerOptions, *, has_checkpoints: bool = False) -> Self:
        """Return the options of a call's answer; ``has_checkpoints`` where they follow the cells."""
        version = context.session.protocol_version
        has_sounds = options.pictures != "files" and version >= _SOUNDS_VERSION
        has_links = options.links and "files" in options.groups
        has_undo = has_checkpoints and "checkpoints" in options.groups
        return cls(options.pictures, has_links, has_sounds, wants_whole_record(context), has_undo)


def wants_whole_record(context: Context) -> bool:
    """Return whether the client of a call asks for all fields."""
    request = context.request_context
    return request is not None and (request.meta or {}).get(RECORD_META) == "whole"
