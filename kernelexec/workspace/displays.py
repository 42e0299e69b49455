"""Displays of a cell, saved as files of the workspace."""

from __future__ import annotations

import errno
import json
import os
import secrets
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from kernelexec.results import DisplayData, ExecuteResult, Output, decode_base64, read_audio
from kernelexec.workspace.safe_files import create_file, open_directory_chain, open_top

#: The directory of saved displays in a workspace.
OUTPUTS = "outputs"
_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
    "text/html": "html",
    "application/vnd.plotly.v1+json": "plotly.json",
    "application/vnd.vega.v5+json": "vega.json",
    "application/geo+json": "geojson",
}
_AUDIO_EXTENSIONS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/ogg": "ogg", "audio/flac": "flac"}
#: The files of one cell: each takes a tenth of a millisecond, in which no other session runs.
_FILES_MAX = 200
#: How many names of one file are tried in their order.
_TRIES = 20
_TEXT = frozenset({"image/svg+xml", "text/html"})


class DisplayFiles:
    """The saved files of one cell's displays, each in its best representation, up to a number of bytes and of files.

    The directory is opened without following links: a kernel that puts a link in its place gets no file written elsewhere.
    """

    def __init__(self, workspace: Path, limit_bytes: int) -> None:
        self._workspace = workspace
        self._left = limit_bytes
        self.note: str | None = None
        """Why some displays have no file; None if all have one, or exceed the number of bytes."""

    def save(self, cell: int, outputs: tuple[Output, ...]) -> tuple[str, ...]:
        """Write the files of cell number ``cell``; return their paths in the workspace, in the order of the outputs."""
        contents = [item for output in outputs if (item := _choose_content(output)) is not None] if self._left else []
        if not contents:
            return ()
        saved: list[str] = []
        try:
            with ExitStack() as opened:
                workspace = open_top(self._workspace)
                directory = open_directory_chain(workspace, Path(OUTPUTS), opened, owner=os.fstat(workspace))
                for number, (extension, content) in enumerate(contents[:_FILES_MAX], 1):
                    if len(content) <= self._left:
                        self._left -= len(content)
                        saved.append(_write(directory, f"cell-{cell:04d}-{number}", extension, content))
        except OSError as exc:
            is_replaced = exc.errno in (errno.ELOOP, errno.ENOTDIR)
            reason = f"{OUTPUTS} in the workspace is a link or a file" if is_replaced else exc.strerror
            self.note = f"{len(contents) - len(saved)} display(s) were not saved as files: {reason}."
        else:
            if len(contents) > _FILES_MAX:
                self.note = f"{len(contents) - _FILES_MAX} display(s) were not saved as files: a cell has {_FILES_MAX} at most."
        return tuple(f"{OUTPUTS}/{name}" for name in saved)


def _write(directory: int, stem: str, extension: str, content: bytes) -> str:
    numbers = *range(1, _TRIES), secrets.randbelow(10**12)  # a cell may have made files of many names
    for suffix in ("", *(f"-{number}" for number in numbers)):
        name = f"{stem}{suffix}.{extension}"
        with suppress(FileExistsError):
            create_file(Path(name), content, dir_fd=directory)
            return name
    raise FileExistsError(stem)


def _choose_content(output: Output) -> tuple[str, bytes] | None:
    if not isinstance(output, DisplayData | ExecuteResult):
        return None
    if (sound := read_audio(output)) is not None and sound.mime in _AUDIO_EXTENSIONS:
        return _AUDIO_EXTENSIONS[sound.mime], sound.content
    for mime, extension in _EXTENSIONS.items():
        value: Any = output.data.get(mime)
        if value is None:
            continue
        if mime.endswith("json"):
            if isinstance(value, dict | list):
                return extension, json.dumps(value).encode()
        elif isinstance(value, str):
            content = value.encode("utf-8", "replace") if mime in _TEXT else decode_base64(value)
            if content:
                return extension, content
    return None
