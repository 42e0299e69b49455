"""Links, pipes and huge files that a kernel left: our side follows none, waits for none, and reads none whole."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelexec.config import Config
from kernelexec.errors import InvalidRequest
from kernelexec.records.notebook.recorder import Recorder, make_empty
from kernelexec.replay import read_history
from kernelexec.results import DisplayData
from kernelexec.workspace import DisplayFiles
from kernelexec.workspace.file_changes import _listing
from kernelexec.workspace.rmtree import remove_within

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def linked(path: Path) -> None:
    path.with_name("aim").touch()
    path.symlink_to(path.with_name("aim"))


IN_PLACE: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "link": linked, "directory": Path.mkdir, "huge file": huge}


@pytest.mark.parametrize("put", IN_PLACE.values(), ids=IN_PLACE)
def test_what_is_in_the_place_of_an_empty_notebook_is_neither_read_nor_removed(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    path = tmp_path / "a.ipynb"
    make_empty(path)
    recorder = Recorder(path)
    path.unlink()
    put(path)
    tracemalloc.start()
    try:
        recorder.finish()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert os.path.lexists(path)


def test_a_directory_that_has_become_another_one_is_not_listed(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "inner").mkdir(parents=True)
    (other / "inner").mkdir(parents=True)
    seen = (own / "inner").stat()
    with _listing(str(own / "inner"), seen) as listing:
        assert not list(listing)
    (tmp_path / "own").rename(tmp_path / "moved")
    own.symlink_to(other)
    with pytest.raises(OSError, match="another directory"), _listing(str(own / "inner"), seen):
        pass
    with pytest.raises(NotADirectoryError), _listing(str(own), None):
        pass


def test_what_is_removed_below_a_workspace_is_not_reached_by_a_link(tmp_path: Path) -> None:
    workspace, other = tmp_path / "ws", tmp_path / "other"
    (other / "snapshots/id").mkdir(parents=True)
    (other / "snapshots/id/file").touch()
    workspace.mkdir()
    (workspace / ".kernelexec").symlink_to(other)
    remove_within(workspace, Path(".kernelexec/snapshots/id"))
    assert (other / "snapshots/id/file").exists()
    remove_within(other, Path("snapshots/id"))
    assert not (other / "snapshots/id").exists()


def test_a_link_in_a_sessions_directory_brings_no_other_file_into_a_kernel(tmp_path: Path) -> None:
    config = Config(workspace=tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.ipynb").write_text(NOTEBOOK)
    (tmp_path / "a/a.ipynb").symlink_to(tmp_path / "b/own.ipynb")
    (tmp_path / "a/a.py").symlink_to("/etc/passwd")
    (tmp_path / "a/way").symlink_to(tmp_path / "b")
    for path in ("a/a.ipynb", "a/a.py", "a/way/own.ipynb"):
        with pytest.raises(InvalidRequest, match="leads out of the session's directory by a link"):
            read_history(tmp_path / path, config)
    (tmp_path / "a/same.ipynb").symlink_to("own.ipynb")
    assert not read_history(tmp_path / "a/same.ipynb", config).cells
    (tmp_path / "mine.ipynb").symlink_to("b/own.ipynb")  # not a kernel's doing: it is in no session's directory
    assert not read_history(tmp_path / "mine.ipynb", config).cells


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files in a directory and have them belong to its owner")
def test_what_root_saves_in_another_users_workspace_belongs_to_that_user(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 4322)
    saved = DisplayFiles(tmp_path, 1000).save(1, (DisplayData({"text/html": "<p>x</p>"}),))
    make_empty(tmp_path / "a.ipynb")
    for path in ("outputs", *saved, "a.ipynb"):
        actual = (tmp_path / path).stat()
        assert (actual.st_uid, actual.st_gid) == (4321, 4322)
