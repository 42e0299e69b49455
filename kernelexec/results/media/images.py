"""Images and sounds among a cell's outputs, decoded."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelexec.results.media.pixel_sizes import read_pixel_size
from kernelexec.results.readable.one_line import format_bytes


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
