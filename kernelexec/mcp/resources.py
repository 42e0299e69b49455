"""What clients read of a session by an address, without a tool: its notebook, the files of its workspace, a cell's output."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastmcp.exceptions import ValidationError
from fastmcp.resources import ResourceContent, ResourceResult

from kernelexec.errors import InvalidRequest
from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.content.answers import json_bytes
from kernelexec.mcp.tools.code import refusing
from kernelexec.mcp.toolsets import Offer
from kernelexec.session import AsyncSession
from kernelexec.text import clean_text

#: The addresses. A session is called by its name or its handle, as by tools.
NOTEBOOK = "kernelexec://sessions/{session}/notebook"
FILE = "kernelexec://sessions/{session}/files/{path*}"
OUTPUT = "kernelexec://sessions/{session}/output/{execution_id}"
#: What clients take of an answer, of text as JSON has it; of bytes less, since they travel as base64.
TEXT_BYTES, BLOB_BYTES = 880_000, 650_000
_NOTEBOOK_TYPE, _PLAIN, _UNKNOWN = "application/x-ipynb+json", "text/plain", "application/octet-stream"
#: What is wrong is told as wrong parameters, and not as an error of the server.
_raising = partial(refusing, ValidationError)


class Resources:
    """What can be read, one method each, for one executor's sessions; none of them makes a session."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def notebook(self, session: str) -> ResourceResult:
        """Read a session's notebook as it is now: its cells and what came of them, in Jupyter's format."""
        with _raising():
            opened = self._calls.open_session(session)
            if opened.notebook is None:
                raise InvalidRequest(f"Session {session} keeps no notebook.")
            await opened.save_notebook()
            return await self._file(opened, opened.notebook, _NOTEBOOK_TYPE)

    async def file(self, session: str, path: str) -> ResourceResult:
        """Read a file of a session's workspace: text as text, anything else as bytes."""
        with _raising():
            return await self._file(self._calls.open_session(session), path, mimetypes.guess_type(path)[0])

    async def output(self, session: str, execution_id: str) -> ResourceResult:
        """Read the text that a cell has printed so far, from its beginning."""
        with _raising():
            opened = self._calls.session_of(execution_id, session)
            limit, text = TEXT_BYTES, None
            while text is None or _taken(text) > TEXT_BYTES:
                page = await opened.read_output(execution_id, offset=0, limit=limit)
                limit, text = limit // 2, clean_text(page.text)
        more = "" if page.next_offset is None else f"\n[read_output with offset={page.next_offset} reads on]"
        return _content(f"{text}{more}", _PLAIN)

    async def _file(self, opened: AsyncSession, path: str | Path, kind: str | None) -> ResourceResult:
        raw = bytearray()
        following: int | None = 0
        while following is not None:
            read = await opened.files.read_bytes(path, offset=following)
            name, size = opened.mask(read.path), read.total_bytes
            if max(size, len(raw)) > TEXT_BYTES:
                message = f"{name} has {size} bytes, {TEXT_BYTES} are the most here: read_file reads it in pieces."
                raise InvalidRequest(message)
            raw += read.content
            following = read.next_offset
        try:
            text = opened.mask(raw.decode())
        except UnicodeDecodeError:
            readable = raw.decode("utf-8", "replace")
        else:
            if (taken := _taken(text)) > TEXT_BYTES:
                message = f"{name} is {taken} bytes as JSON, {TEXT_BYTES} are the most here: read_file reads it in pieces."
                raise InvalidRequest(message)
            return _content(text, kind or _PLAIN)
        if len(raw) > BLOB_BYTES:
            raise InvalidRequest(f"{name} has {size} bytes that are no text, {BLOB_BYTES} are the most here.")
        if opened.mask(readable) != readable:
            raise InvalidRequest(f"{name} is no text, and a secret is in it: it is not shown as it is.")
        return _content(bytes(raw), kind or _UNKNOWN)


def templates(resources: Resources, offer: Offer) -> list[tuple[str, Callable[..., Any], str]]:
    """The addresses of what an operator offers, with what reads it and its media type."""
    found: list[tuple[str, Callable[..., Any], str]] = [
        (NOTEBOOK, resources.notebook, _NOTEBOOK_TYPE),
        (OUTPUT, resources.output, _PLAIN),
    ]
    return [*found, (FILE, resources.file, _UNKNOWN)] if "files" in offer.groups else found


def _taken(text: str) -> int:
    """How much of an answer a text takes, without its quotes."""
    return json_bytes(text) - 2


def _content(content: str | bytes, kind: str) -> ResourceResult:
    return ResourceResult(contents=[ResourceContent(content, mime_type=kind)])
