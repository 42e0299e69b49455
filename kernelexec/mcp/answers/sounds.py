"""Sounds in answers: those that fit, in formats that models accept."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from mcp.types import AudioContent

from kernelexec.results import Audio

#: The number of sounds in an answer.
SOUNDS_MAX = 2
#: The beginnings of files by their media types; another beginning would break the whole conversation.
_BEGINNINGS: dict[str, tuple[bytes, ...]] = {
    "audio/wav": (b"RIFF",),
    "audio/x-wav": (b"RIFF",),
    "audio/mpeg": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
    "audio/ogg": (b"OggS",),
    "audio/flac": (b"fLaC",),
}


def select_sounds(sounds: Sequence[Audio], room: int) -> list[AudioContent]:
    """Return the first usable sounds that fit into ``room`` bytes of an answer; the others are files of the workspace."""
    selected: list[AudioContent] = []
    for sound in sounds:
        data = base64.b64encode(sound.content).decode("ascii")
        if len(selected) < SOUNDS_MAX and len(data) <= room and sound.content.startswith(_BEGINNINGS.get(sound.mime, ())):
            room -= len(data)
            selected.append(AudioContent(type="audio", data=data, mime_type=sound.mime))
    return selected
