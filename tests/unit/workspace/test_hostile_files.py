"""Links, pipes and huge files that a kernel left: our side follows none, waits for none, and reads none whole."""

from __future__ import annotations

import fcntl
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from kernelexec.config import Config
from kernelexec.errors import FileRefused, InvalidRequest
from kernelexec.executor.replay import read_history
from kernelexec.records.notebook.recorder import Recorder, make_empty
from kernelexec.results import DisplayData
from kernelexec.workspace import DisplayFiles, FileOperations, system_calls
from kernelexec.workspace.agent_files.access import Access, FileRoot, Target, WorkspacePath
from kernelexec.workspace.cell_files import FileChanges, _listing
from kernelexec.workspace.rmtree import remove_within
from kernelexec.workspace.safe_files import (
    closing_fd,
    copy_between,
    create_beneath,
    has_content,
    read_regular,
    replace_beneath,
    replace_file,
)

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def linked(path: Path) -> None:
    path.with_name("aim").touch()
    path.symlink_to(path.with_name("aim"))


IN_PLACE: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "link": linked, "directory": Path.mkdir, "huge file": huge}


@pytest.mark.parametrize("put", IN_PLACE.values(), ids=IN_PLACE)
def test_files_replacing_an_empty_notebook_are_neither_read_nor_removed(tmp_path: Path, put: Callable[[Path], None]) -> None:
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


def test_removal_below_a_workspace_follows_no_link(tmp_path: Path) -> None:
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
def test_files_saved_by_root_belong_to_the_workspaces_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 4322)
    saved = DisplayFiles(tmp_path, 1000).save(1, (DisplayData({"text/html": "<p>x</p>"}),))
    make_empty(tmp_path / "a.ipynb")
    for path in ("outputs", *saved, "a.ipynb"):
        actual = (tmp_path / path).stat()
        assert (actual.st_uid, actual.st_gid) == (4321, 4322)


@contextmanager
def leased(*paths: Path) -> Iterator[None]:
    """Hold a lease on files: an open file that respects it waits 45 s."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with ExitStack() as opened:
        opened.callback(signal.signal, signal.SIGIO, before)
        for path in paths:
            file = opened.enter_context(path.open("rb+"))
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield


@pytest.mark.parametrize("has_openat2", [True, False])
def test_files_with_a_lease_are_refused_by_name_and_can_be_replaced_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_openat2: bool
) -> None:
    monkeypatch.setattr("kernelexec.workspace.system_calls.has_openat2", lambda: has_openat2)
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text("old")
    files = FileOperations(Access([FileRoot(tmp_path, str(tmp_path))]), read_before_delete=False)
    with leased(*paths):
        for call in (files.read, files.read_bytes, lambda path: files.write(path, "x", append=True)):
            with pytest.raises(FileRefused, match="a is left alone: a program holds a lease on it"):
                call("a")
        assert {entry.path for entry in files.list().entries} == {"a", "b", "c"}
        files.write("b", "new")
        files.delete("c")
        assert not paths[2].exists()
    assert files.read("b").text == "new"


def test_no_reader_waits_for_a_lease(tmp_path: Path) -> None:
    path, copies = tmp_path / "leased.ipynb", tmp_path / "copies"
    copies.mkdir()
    path.write_text(NOTEBOOK)
    with leased(path):
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read_history(path, Config())
        with pytest.raises(BlockingIOError):
            read_regular(path, 10)
        assert not has_content(path, b"")
        copy_between(tmp_path, copies, Path(), {path.name: 10**6}, limit_bytes=10**6)
        assert not list(copies.iterdir())
        replace_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_of_a_file_that_grows_while_it_is_edited_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Access.file

    @contextmanager
    def growing(access: Access, spot: WorkspacePath) -> Iterator[tuple[int, os.stat_result]]:
        with opened(access, spot) as (fd, seen):
            os.truncate(tmp_path / "a.txt", 1 << 36)
            yield fd, seen

    (tmp_path / "a.txt").write_text("hello")
    monkeypatch.setattr(Access, "file", growing)
    monkeypatch.setattr("kernelexec.workspace.agent_files.operations.WRITE_BYTES", 1000)
    files = FileOperations(Access([FileRoot(tmp_path, "/workspace")]))
    with pytest.raises(InvalidRequest, match="has 1001 bytes; the limit of a file that is edited is 1000"):
        files.edit("a.txt", "hello", "hallo")


def test_an_edit_whose_result_is_too_large_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("a" * 1000)
    monkeypatch.setattr("kernelexec.workspace.agent_files.operations.WRITE_BYTES", 10**6)
    files = FileOperations(Access([FileRoot(tmp_path, "/workspace")]))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="content has 100000000 bytes"):
            files.edit("a.txt", "a", "b" * 100_000, every=True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    assert (tmp_path / "a.txt").read_text() == "a" * 1000


def write_in_place(path: Path) -> None:
    path.write_text("HELLO")
    os.utime(path, ns=(0, 0))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("longer than before"),
        write_in_place,
        lambda path: replace_file(path, b"HELLO"),
        Path.unlink,
    ],
    ids=["another size", "another time", "another file", "no file"],
)
def test_a_file_that_a_cell_changes_during_an_edit_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    changing = Access.changing

    def changed(access: Access, spot: WorkspacePath, *, make: bool = False) -> AbstractContextManager[Target]:
        change(spot.path)
        return changing(access, spot, make=make)

    path = tmp_path / "a.txt"
    path.write_text("hello")
    monkeypatch.setattr(Access, "changing", changed)
    files = FileOperations(Access([FileRoot(tmp_path, "/workspace")]))
    with pytest.raises(FileRefused, match=r"^a\.txt has changed during the edit, and stays as it is: read it again\.$"):
        files.edit("a.txt", "hello", "hallo")
    assert not path.exists() or path.read_text() != "hallo"


@pytest.fixture
def moved_branch(tmp_path: Path) -> Path:
    """The path of a branch's workspace, which has been moved: a link leads to a directory of the owner's instead."""
    above = tmp_path / "workspace/.kernelexec/branches"
    above.parent.mkdir(parents=True)
    (tmp_path / "outside/b").mkdir(parents=True)
    (tmp_path / "outside/b/secret").write_text("the owner's")
    above.symlink_to(tmp_path / "outside")
    return above / "b"


CREATIONS: dict[str, Callable[[Path], object]] = {
    "a notebook": lambda path: make_empty(path / "b.ipynb"),
    "a file": lambda path: replace_file(path / "secret", b"new"),
    "a file below": lambda path: replace_beneath(path, Path("sub/file"), b""),
    "a directory": lambda path: create_beneath(path, Path("sub")),
    "a copy": lambda path: copy_between(path.parents[2], path, Path("sub"), {"file": 10}, limit_bytes=10),
}


@pytest.mark.parametrize("create", CREATIONS.values(), ids=CREATIONS)
def test_nothing_is_created_where_a_link_in_the_place_of_branches_leads(
    moved_branch: Path, create: Callable[[Path], object]
) -> None:
    (moved_branch.parents[2] / "sub").mkdir()
    (moved_branch.parents[2] / "sub/file").touch()
    with pytest.raises(NotADirectoryError):
        create(moved_branch)
    assert not DisplayFiles(moved_branch, 1000).save(1, (DisplayData({"text/html": "<p>x</p>"}),))
    assert [path.name for path in moved_branch.iterdir()] == ["secret"]
    assert (moved_branch / "secret").read_text() == "the owner's"


def test_nothing_is_read_where_a_link_in_the_place_of_branches_leads(moved_branch: Path) -> None:
    with pytest.raises(NotADirectoryError):
        read_regular(moved_branch / "secret", 100)
    assert FileChanges(moved_branch).scan() == {}


def test_of_a_file_that_grows_while_it_is_copied_the_first_bytes_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for directory in (source, target):
        directory.mkdir()
    (source / "file").write_bytes(b"content")
    copy_file_range = os.copy_file_range

    def copy_and_grow(*arguments: int) -> int:
        os.truncate(source / "file", 1 << 40)
        return copy_file_range(*arguments)

    monkeypatch.setattr(os, "copy_file_range", copy_and_grow)
    copy_between(source, target, Path(), {"file": 7}, limit_bytes=100)
    assert (target / "file").read_bytes() == b"content"


@pytest.mark.parametrize("has_openat2", [True, False])
def test_files_are_opened_by_paths_without_links_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_openat2: bool,  # noqa: FBT001 - a parameter
) -> None:
    monkeypatch.setattr(system_calls, "has_openat2", lambda: has_openat2)
    base = tmp_path.resolve()
    (base / "real/deep").mkdir(parents=True)
    (base / "real/deep/file").write_text("content")
    (base / "linked").symlink_to("real")
    (base / "real/deep/link").symlink_to("file")
    with closing_fd(system_calls.open_unlinked(base / "real/deep/file")) as fd:
        assert os.read(fd, 100) == b"content"
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    link = "a link is there or on the way, and none is followed"
    for path, reason in (
        ("linked/deep/file", link),
        ("real/deep/link", link),
        ("real/deep", "plain file"),
        ("none", "No such"),
    ):
        with pytest.raises(OSError, match=reason):
            system_calls.open_unlinked(base / path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - as above


def test_files_beyond_their_size_or_the_bound_of_all_are_not_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for directory in (source, target):
        directory.mkdir()
    for name in ("a", "b", "larger", "beyond"):
        (source / name).write_bytes(b"x" * 6)
    (source / "present").write_bytes(b"x" * 6)
    (target / "present").touch()
    copy_between(source, target, Path(), {"present": 6, "a": 6, "larger": 5, "b": 6, "beyond": 6}, limit_bytes=12)
    assert sorted(path.name for path in target.iterdir()) == ["a", "b", "present"]
