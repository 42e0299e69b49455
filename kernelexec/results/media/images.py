"""Images and sounds among a cell's outputs, decoded."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelexec.results.readable.one_line import format_bytes

#: The first bytes by which the type of a picture is known, and those of each type but WebP, whose length is among them.
BEGINNING_BYTES = 12
_BEGINNINGS = {"image/png": (b"\x89PNG\r\n\x1a\n",), "image/jpeg": (b"\xff\xd8\xff",), "image/gif": (b"GIF87a", b"GIF89a")}
#: Markers of JPEG: frames, whose header has the size, but for three of the same range that are none (ITU T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEGMENTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Image:
    """An image among a cell's outputs, with its media type."""

    mime: str
    content: bytes

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height in pixels, as the header of a PNG, GIF, JPEG or WebP says; None for others."""
        return read_pixel_size(self.content)

    @property
    def summary(self) -> str:
        """The type, the size in pixels and the size in bytes, in one line."""
        size = self.size
        pixels = "" if size is None else f" {size[0]}\N{MULTIPLICATION SIGN}{size[1]}"
        return f"{self.mime}{pixels} {format_bytes(len(self.content))}"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the image to a file, or replace the file; return its path. Raise ``OSError`` if that fails."""
        Path(path).write_bytes(self.content)
        return Path(path)

    def to_html(self) -> str:
        """Return an element with the image inside; of an SVG no script runs there."""
        return f'<img src="data:{self.mime};base64,{base64.b64encode(self.content).decode()}">'

    def __repr__(self) -> str:
        return f"<Image {self.summary}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:  # noqa: ARG002 - IPython's
        if self.mime == "image/svg+xml":
            return {"text/plain": repr(self), "text/html": self.to_html()}
        return {"text/plain": repr(self), self.mime: base64.b64encode(self.content).decode()}


def describe_images(images: Sequence[Image]) -> str | None:
    """Return the number of images with the summary of a single one, or the size of several; None for none."""
    if len(images) == 1:
        return f"1 image {images[0].summary}"
    return f"{len(images)} images {format_bytes(sum(len(image.content) for image in images))}" if images else None


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound among a cell's outputs, with its media type."""

    mime: str
    content: bytes

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the sound to a file, or replace the file; return its path. Raise ``OSError`` if that fails."""
        Path(path).write_bytes(self.content)
        return Path(path)

    def __repr__(self) -> str:
        return f"<Audio {self.mime} {format_bytes(len(self.content))}>"


def read_picture_type(content: bytes) -> str | None:
    """Return the media type of a PNG, GIF, JPEG or WebP, by its first bytes; None for another."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for mime, beginnings in _BEGINNINGS.items() if content.startswith(beginnings)), None)


def read_pixel_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP; None for another or a damaged one. Nothing is decoded."""
    size = 0, 0
    match read_picture_type(content):
        case "image/png":
            size = _number(content[16:20]), _number(content[20:24])
        case "image/gif":
            size = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
        case "image/jpeg":
            size = _read_jpeg(content)
        case "image/webp":
            size = _read_webp(content)
    return size if all(size) else None


def _read_jpeg(content: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_SEGMENTS_MAX):
        marker = content[at : at + 2]
        if len(marker) < 2 or marker[0] != 0xFF:  # noqa: PLR2004 - every segment begins so
            break
        if marker[1] in _FRAMES:
            return _number(content[at + 7 : at + 9]), _number(content[at + 5 : at + 7])
        at += 2 + _number(content[at + 2 : at + 4])
    return 0, 0


def _read_webp(content: bytes) -> tuple[int, int]:
    """Read the size by the kind of the first chunk (RFC 9649): lossy, lossless or extended."""
    match content[12:16]:
        case b"VP8 ":
            return int.from_bytes(content[26:28], "little") & 0x3FFF, int.from_bytes(content[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
    return 0, 0


def _number(field: bytes) -> int:
    return int.from_bytes(field, "big")
