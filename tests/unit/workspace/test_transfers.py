"""Copies of files and directories: whole, bounded, over no link, whatever a kernel puts there."""

from __future__ import annotations

import io
import os
import socket
import stat
from contextlib import chdir
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from kernelexec.cancellation import CallerCalls
from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest, InvalidWorkDir
from kernelexec.results import FilesCopied, NotCopied
from kernelexec.workspace.agent_files.access import Access, FileRoot
from kernelexec.workspace.agent_files.tracking import ReadTracker
from kernelexec.workspace.agent_files.transfers import FileTransfers

CONTENT = bytes(range(256)) * 5000


class Stopped(Exception):
    """The caller does not want the rest."""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "work"
    path.mkdir()
    return path


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's own directory, which is the current one too."""
    path = tmp_path.resolve() / "own"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


class CountedCalls(CallerCalls):
    """Calls that are stopped before the piece after ``stop_after``."""

    def __init__(self, stop_after: int | None) -> None:
        super().__init__()
        self._left = stop_after

    def check(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Stopped


def make_transfers(work: Path, *roots: FileRoot, stop_after: int | None = None) -> FileTransfers:
    access = Access([FileRoot(work, "/workspace"), *roots])
    return FileTransfers(access, ReadTracker(access, enforced=True), CountedCalls(stop_after))


@pytest.fixture
def transfers(work: Path) -> FileTransfers:
    return make_transfers(work)


def list_tree(top: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(top)): path.read_bytes() if path.is_file() else None for path in sorted(top.rglob("*"))}


def make_tree(top: Path) -> dict[str, bytes | None]:
    (top / "a" / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a" / "big").write_bytes(CONTENT)
    (top / "a" / "deep" / "er" / "none").write_bytes(b"")
    (top / "a" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (top / "a" / "run.sh").chmod(0o755)
    (top / ".hidden \u00e4 name").write_bytes(b"x")
    return list_tree(top)


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_a_file_goes_in_and_comes_out_unchanged(transfers: FileTransfers, work: Path, own: Path, size: int) -> None:
    content = (CONTENT * 3)[:size]
    (own / "f").write_bytes(content)
    assert transfers.upload("f") == FilesCopied("f", ("f",), size)
    assert (work / "f").read_bytes() == content
    assert transfers.download("f", own / "g") == FilesCopied(str(own / "g"), (str(own / "g"),), size)
    assert (own / "g").read_bytes() == content
    assert list_tree(work) == {"f": content}, "nothing unfinished stays"


@pytest.mark.parametrize(
    ("path", "copy"),
    [
        (None, "f"),
        ("g", "g"),
        ("new/deep/g", "new/deep/g"),
        ("dir", "dir/f"),
        ("dir/", "dir/f"),
        ("other/", "other/f"),
        ("/workspace/g", "g"),
        (Path("dir/g"), "dir/g"),
    ],
)
def test_an_uploaded_file_gets_the_path_that_is_meant(
    transfers: FileTransfers, work: Path, own: Path, path: str | None, copy: str
) -> None:
    (own / "f").write_bytes(b"x")
    (work / "dir").mkdir()
    assert transfers.upload(own / "f", path).files == (copy,)
    assert (work / copy).read_bytes() == b"x"


@pytest.mark.parametrize(
    ("target", "copy"),
    [(None, "f"), ("g", "g"), ("new/g", "new/g"), ("dir", "dir/f"), ("dir/", "dir/f"), ("other/", "other/f")],
)
def test_a_downloaded_file_gets_the_path_that_is_meant(
    transfers: FileTransfers, work: Path, own: Path, target: str | None, copy: str
) -> None:
    (work / "sub").mkdir()
    (work / "sub" / "f").write_bytes(b"x")
    (own / "dir").mkdir()
    assert transfers.download("sub/f", target).path == str(own / copy)
    assert (own / copy).read_bytes() == b"x"


def test_a_directory_goes_in_and_comes_out_unchanged(transfers: FileTransfers, work: Path, own: Path) -> None:
    (own / "tree").mkdir()
    tree = make_tree(own / "tree")
    result = transfers.upload("tree", "copy")
    assert list_tree(work / "copy") == tree
    assert (result.path, result.size_bytes, result.refused) == ("copy", len(CONTENT) + 11, ())
    assert sorted(result.files) == sorted(f"copy/{path}" for path, content in tree.items() if content is not None)
    back = transfers.download("copy", "back")
    assert list_tree(own / "back") == tree
    assert (len(back.files), back.size_bytes, back.refused) == (len(result.files), result.size_bytes, ())
    for copy in (work / "copy", own / "back"):
        assert (copy / "a" / "run.sh").stat().st_mode & stat.S_IXUSR
        assert not (copy / "a" / "big").stat().st_mode & stat.S_IXUSR


def test_a_directory_is_merged_into_one_that_exists(transfers: FileTransfers, work: Path, own: Path) -> None:
    for top, content in ((own / "d", b"new"), (work / "d", b"old")):
        top.mkdir()
        (top / "same").write_bytes(content)
        (top / f"only {content.decode()}").write_bytes(content)
    transfers.upload("d")
    assert list_tree(work / "d") == {"only new": b"new", "only old": b"old", "same": b"new"}
    transfers.upload("d", "x/")
    assert list_tree(work / "x") == {"d": None, "d/only new": b"new", "d/same": b"new"}


def test_open_files_are_copied_as_streams(transfers: FileTransfers, work: Path, own: Path) -> None:
    stream = io.BytesIO(b"skipped" + CONTENT)
    stream.seek(7)
    assert transfers.upload(stream, "s/f") == FilesCopied("s/f", ("s/f",), len(CONTENT))
    target = io.BytesIO()
    assert transfers.download("s/f", target).size_bytes == len(CONTENT)
    assert target.getvalue() == CONTENT == (work / "s" / "f").read_bytes()
    with (own / "t").open("wb") as file:
        assert transfers.download("s/f", file).path == str(own / "t")
    assert (own / "t").read_bytes() == CONTENT


def test_wrong_sources_and_targets_are_refused_before_anything_is_written(
    transfers: FileTransfers, work: Path, own: Path
) -> None:
    (work / "f").write_bytes(b"x")
    (own / "text").write_text("x")
    os.mkfifo(own / "pipe")
    (own / "dir").mkdir()
    with (own / "text").open() as text:
        for source, path, reason in (
            ("missing", None, "cannot be read: No such file"),
            ("pipe", None, "pass it as an open binary file"),
            (io.BytesIO(b""), None, "upload needs a path"),
            (text, "t", "must be in binary mode"),
            (3, "t", "int must be a path, or a binary file"),
            (own / "text", "../t", "without '..'"),
            (own / "text", "/etc/t", "outside of the allowed paths"),
        ):
            with pytest.raises((InvalidRequest, InvalidPath), match=reason):
                transfers.upload(source, path)  # type: ignore[arg-type]  # wrong ones too
        with pytest.raises(InvalidRequest, match="must be in binary mode"):
            transfers.download("f", text)  # type: ignore[arg-type]  # a wrong one
    with pytest.raises(InvalidRequest, match="cannot be written"):
        transfers.download("f", own / "text" / "x")
    with pytest.raises(InvalidPath, match="does not exist"):
        transfers.download("missing")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        transfers.download(".", own / "text")
    assert list_tree(work) == {"f": b"x"}
    assert list_tree(own) == {"dir": None, "pipe": None, "text": b"x"}


def test_links_and_special_files_of_a_kernel_are_not_followed(transfers: FileTransfers, work: Path, own: Path) -> None:
    (own / "secret").write_bytes(b"secret")
    (own / "secrets").mkdir()
    (own / "secrets" / "s").write_bytes(b"secret")
    tree = work / "tree"
    tree.mkdir()
    (tree / "good").write_bytes(b"x")
    (tree / "link").symlink_to(own / "secret")
    (tree / "directory link").symlink_to(own / "secrets")
    (tree / "loop").symlink_to(tree)
    os.link(own / "secret", tree / "hard link")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as server, chdir(tree):
        server.bind("socket")  # a longer path may be too long
    result = transfers.download("tree", "copy")
    assert list_tree(own / "copy") == {"good": b"x"}
    assert {entry.path for entry in result.refused} == {
        f"tree/{name}" for name in ("link", "directory link", "loop", "hard link", "pipe", "socket")
    }
    for name in ("tree/link", "tree/directory link/s", "tree/pipe", "tree/hard link"):
        with pytest.raises(FileRefused):
            transfers.download(name, "out")
    assert not (own / "out").exists()


@pytest.mark.parametrize("name", ["tree/link/f", "tree/link", "tree/pipe", "tree/directory"])
def test_an_upload_writes_nothing_outside(transfers: FileTransfers, work: Path, own: Path, name: str) -> None:
    (own / "f").write_bytes(b"new")
    (own / "outside").mkdir()
    (own / "outside" / "f").write_bytes(b"old")
    (work / "tree" / "directory" / "f").mkdir(parents=True)
    (work / "tree" / "link").symlink_to(own / "outside")
    os.mkfifo(work / "tree" / "pipe")
    with pytest.raises((FileRefused, InvalidPath)):
        transfers.upload("f", name)
    assert list_tree(own / "outside") == {"f": b"old"}


def test_links_of_the_callers_directory_are_listed_and_a_link_that_is_named_is_followed(
    transfers: FileTransfers, work: Path, own: Path
) -> None:
    (own / "real").mkdir()
    (own / "real" / "f").write_bytes(b"x")
    (own / "real" / "link").symlink_to("f")
    os.mkfifo(own / "real" / "pipe")
    (own / "named").symlink_to("real")
    result = transfers.upload("named", "copy")
    assert list_tree(work / "copy") == {"f": b"x"}
    assert result.refused == (
        NotCopied("named/link", "it is a symbolic link, and none is followed"),
        NotCopied("named/pipe", "it is not a regular file"),
    )


class SwappingCalls(CallerCalls):
    """Calls after the first of which a directory is a link to another, as a cell may do in the middle of a copy."""

    def __init__(self, directory: Path, target: Path) -> None:
        super().__init__()
        self._directory, self._target = directory, target

    def check(self) -> None:
        if not self._directory.is_symlink():
            self._directory.rename(self._directory.with_name("moved"))
            self._directory.symlink_to(self._target)


def test_an_upload_follows_no_link_that_takes_the_place_of_a_directory_meanwhile(work: Path, own: Path) -> None:
    for path in ("secret/key", "tree/a", "tree/d/key"):
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        (own / path).write_bytes(path.encode())
    access = Access([FileRoot(work, "/workspace")])
    calls = SwappingCalls(own / "tree" / "d", own / "secret")
    transfers = FileTransfers(access, ReadTracker(access, enforced=True), calls)
    result = transfers.upload("tree", "copy")
    assert list_tree(work / "copy") == {"a": b"tree/a", "d": None}
    assert [entry.path for entry in result.refused] == ["tree/d/key"]


def test_bounds_are_checked_before_the_copy(
    transfers: FileTransfers, work: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.transfers.TRANSFER_BYTES", 100)
    monkeypatch.setattr("kernelexec.workspace.agent_files.access.ENTRIES_MAX", 5)
    with (work / "sparse").open("wb") as file:
        file.truncate(2**40)
    (own / "big").write_bytes(bytes(101))
    (own / "many").mkdir()
    (own / "heavy").mkdir()
    for number in range(6):
        (own / "many" / str(number)).touch()
    for number in range(3):
        (own / "heavy" / str(number)).write_bytes(bytes(40))
    for name in ("many", "heavy"):
        (work / name).mkdir()
        for file_ in (own / name).iterdir():
            (work / name / file_.name).write_bytes(file_.read_bytes())
    before = list_tree(work / "many") | list_tree(work / "heavy")
    for source, reason in (("big", "more than 100 bytes"), ("many", "more than 5 entries"), ("heavy", "more than 100 bytes")):
        with pytest.raises(InvalidRequest, match=reason):
            transfers.upload(source, "new")
    for path, reason in (("sparse", "more than 100 bytes"), ("many", "more than 5 entries"), ("heavy", "more than 100 bytes")):
        with pytest.raises(InvalidRequest, match=reason):
            transfers.download(path, "new")
    with pytest.raises(InvalidRequest, match="more than 100 bytes"):
        transfers.upload(io.BytesIO(bytes(101)), "new")
    assert not (own / "new").exists()
    assert not (work / "new").exists()
    assert list_tree(work / "many") | list_tree(work / "heavy") == before
    assert {path.name for path in work.iterdir()} == {"sparse", "many", "heavy"}


def test_a_directory_that_grows_over_the_bound_during_a_download_is_named(
    transfers: FileTransfers, work: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.transfers.TRANSFER_BYTES", 100)
    monkeypatch.setattr(CountedCalls, "check", lambda _: (work / "d/b").write_bytes(bytes(50)))
    (work / "d").mkdir()
    (work / "d/a").write_bytes(bytes(60))
    (work / "d/b").write_bytes(bytes(30))
    with pytest.raises(InvalidRequest, match=r"^'d' has more than 100 bytes: copy parts of it\.$"):
        transfers.download("d", "new")
    assert list_tree(own / "new") == {"a": bytes(60)}


def test_a_copy_that_is_stopped_leaves_the_old_file(work: Path, own: Path) -> None:
    for top in (work, own):
        (top / "old").write_bytes(b"old")
        (top / "big").write_bytes(CONTENT * 3)
    transfers = make_transfers(work, stop_after=2)
    with pytest.raises(Stopped):
        transfers.upload("big", "old")
    with pytest.raises(Stopped):
        transfers.download("big", "old")
    for top in (work, own):
        assert {path.name: path.stat().st_size for path in top.iterdir()} == {"old": 3, "big": len(CONTENT) * 3}


def test_read_only_and_hidden_paths_keep_their_rights(work: Path, own: Path, tmp_path: Path) -> None:
    shared = tmp_path.resolve() / "shared"
    (shared / "hidden").mkdir(parents=True)
    (shared / "f").write_bytes(b"x")
    (shared / "hidden" / "f").write_bytes(b"secret")
    transfers = make_transfers(work, FileRoot(shared, "/shared", writable=False, hidden=(shared / "hidden",)))
    (own / "n").write_bytes(b"n")
    with pytest.raises(FileRefused, match="can only be read"):
        transfers.upload("n", "/shared/n")
    with pytest.raises(FileRefused, match="is hidden"):
        transfers.download("/shared/hidden/f")
    result = transfers.download("/shared", "copy")
    assert list_tree(own / "copy") == {"f": b"x", "hidden": None}
    assert [entry.path for entry in result.refused] == ["/shared/hidden/f"]


def test_exists(transfers: FileTransfers, work: Path) -> None:
    (work / "dir").mkdir()
    (work / "f").touch()
    (work / "dangling").symlink_to("nowhere")
    for path, expected in (
        (".", True),
        ("dir", True),
        ("f", True),
        ("dangling", True),
        ("/workspace/f", True),
        (work / "f", True),
        ("g", False),
        ("dir/g", False),
        ("missing/g", False),
        ("f/g", False),
    ):
        assert transfers.exists(path) is expected, path
    for wrong in ("../f", "/etc/passwd", "", "a\0b"):
        with pytest.raises(InvalidPath):
            transfers.exists(wrong)


def test_a_workspace_that_is_gone_is_an_error(transfers: FileTransfers, work: Path, own: Path) -> None:
    (own / "f").touch()
    work.rmdir()
    with pytest.raises(InvalidWorkDir):
        transfers.upload("f")
    with pytest.raises(InvalidWorkDir):
        transfers.exists("f")


def test_a_copy_shows_itself_in_a_line() -> None:
    assert repr(FilesCopied("a", ("a",), 3)) == "<FilesCopied 'a' · 3 bytes>"
    refused = (NotCopied("d/link", "x"),)
    assert repr(FilesCopied("d", ("d/a", "d/b"), 2000, refused)) == "<FilesCopied 'd' · 2 files · 2 kB · 1 refused: d/link>"


def test_a_target_that_is_no_regular_file_stays_as_it_is(transfers: FileTransfers, work: Path, own: Path) -> None:
    (work / "f").write_bytes(b"x")
    os.mkfifo(own / "pipe")
    for target in (own / "pipe", "/dev/null", "/dev/full"):
        with pytest.raises(InvalidRequest, match="is not a regular file: pass it as an open binary file"):
            transfers.download("f", target)
    assert stat.S_ISFIFO((own / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_links_in_the_callers_target_are_not_followed(transfers: FileTransfers, work: Path, own: Path) -> None:
    (work / "tree" / "sub").mkdir(parents=True)
    (work / "tree" / "sub" / "f").write_bytes(b"x")
    (own / "outside").mkdir()
    (own / "target").mkdir()
    (own / "target" / "sub").symlink_to(own / "outside")
    with pytest.raises(InvalidRequest, match="cannot be written"):
        transfers.download("tree", "target")
    assert list_tree(own / "outside") == {}
    (own / "named").symlink_to(own / "outside")
    transfers.download("tree", "named")
    transfers.download("tree/sub/f", own / "named")
    assert list_tree(own / "outside") == {"f": b"x", "sub": None, "sub/f": b"x"}


@pytest.mark.parametrize("path", ["", " ", "a\0b", "~no-such-user-here/x"])
def test_a_path_that_no_file_has_is_refused(transfers: FileTransfers, work: Path, own: Path, path: str) -> None:
    (own / "f").write_bytes(b"x")
    (work / "f").write_bytes(b"x")
    with pytest.raises(InvalidRequest):
        transfers.upload(path)
    with pytest.raises(InvalidRequest):
        transfers.download("f", path)
    assert list_tree(work) == {"f": b"x"}


def test_a_raw_file_gets_every_byte_and_its_failure_is_its_own(transfers: FileTransfers, work: Path) -> None:
    class Slow(io.RawIOBase):
        content = b""

        def write(self, data: Any) -> int:
            self.content += bytes(data[:7])
            return len(data[:7])

    (work / "f").write_bytes(CONTENT[:100])
    slow = Slow()
    transfers.download("f", cast("BinaryIO", slow))
    assert slow.content == CONTENT[:100]
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        pytest.raises(InvalidRequest, match="'/dev/full' cannot be written"),
    ):
        transfers.download("f", full)
