"""The directory of an environment is opened without following links, and a failure has its own reason."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from kernelexec.launcher.launch.one_shot_task import _open_directory, _TaskError


@pytest.mark.parametrize("put", [Path.touch, lambda path: path.symlink_to("/etc")], ids=["a file", "a link"])
def test_other_entries_in_its_place_are_named_and_not_opened(tmp_path: Path, put: object) -> None:
    assert callable(put)
    put(tmp_path / "venv")
    with pytest.raises(_TaskError, match=re.escape(f"{tmp_path}/venv is a link, or no directory: remove it.")):
        _open_directory(str(tmp_path), ["venv"])


def test_a_directory_that_cannot_be_opened_is_not_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def open_first(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(path, flags)

    monkeypatch.setattr(os, "open", open_first)
    with pytest.raises(_TaskError, match=re.escape(f"{tmp_path}/venv cannot be opened: Too many open files.")):
        _open_directory(str(tmp_path), ["venv"])
