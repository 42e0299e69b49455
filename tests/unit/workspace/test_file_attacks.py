"""Paths that are to lead file operations elsewhere: nothing outside is ever listed, read, written or deleted."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from kernelexec.errors import FileRefused, InvalidPath, KernelexecError
from kernelexec.workspace import system_calls as beneath
from kernelexec.workspace.agent_files.access import Access, FileRoot
from kernelexec.workspace.agent_files.operations import FileOperations

SECRET = "what is outside"  # noqa: S105 - it is none
ROUNDS = 100


class Ground:
    """A workspace with everything in it that a kernel can make, and what lies outside."""

    def __init__(self, base: Path) -> None:
        self.work, self.outside = base / "work", base / "outside"
        for path in (self.work / "real" / "deep", self.outside / "tree"):
            path.mkdir(parents=True)
        (self.work / "real" / "mine.txt").write_text("mine")
        self.secrets = [self.outside / name for name in ("secret.txt", "linked.txt", "tree/secret.txt")]
        for path in self.secrets:
            path.write_text(SECRET)
        links: dict[str, str | Path] = {
            "to_file": self.outside / "secret.txt",
            "to_directory": self.outside,
            "to_inside": "real/mine.txt",
            "to_inner": "real",
            "to_root": "/proc/self/root",
            "to_descriptors": "/proc/self/fd",
            "to_nothing": self.outside / "made",
            "to_itself": "to_itself",
            "real/up": "../..",
        }
        for name, target in links.items():
            (self.work / name).symlink_to(target)
        (self.work / "hard.txt").hardlink_to(self.outside / "linked.txt")
        os.mkfifo(self.work / "pipe")
        with socket.socket(socket.AF_UNIX) as server, suppress(OSError):  # a long path: made by its directory
            held = os.open(self.work, os.O_RDONLY)
            server.bind(f"/proc/self/fd/{held}/socket")
            os.close(held)
        self.files = self.operations()

    def operations(self) -> FileOperations:
        return FileOperations(Access([FileRoot(self.work, str(self.work))]), read_before_delete=False)

    def unchanged(self) -> bool:
        """Whether all outside is as it was."""
        actual = set(self.outside.rglob("*"))
        return actual == {*self.secrets, self.outside / "tree"} and all(path.read_text() == SECRET for path in self.secrets)


@pytest.fixture(params=["the system resolves", "part by part"], autouse=True)
def branch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open what is beneath a directory, on a system that has both."""
    assert beneath.has_openat2(), "this system has no openat2: the first branch cannot be tested"
    if request.param == "part by part":
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    return str(request.param)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path.resolve())


@pytest.fixture(scope="module")
def kept_ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """One for all tests that leave it as it was."""
    return Ground(tmp_path_factory.mktemp("kept").resolve())


@pytest.fixture
def untouched(kept_ground: Ground) -> Iterator[Ground]:
    """That one, with operations of its own, which must be there afterwards with all that is in it."""
    kept_ground.files = kept_ground.operations()
    before = sorted(map(str, kept_ground.work.rglob("*")))
    yield kept_ground
    assert sorted(map(str, kept_ground.work.rglob("*"))) == before
    assert (kept_ground.work / "real" / "mine.txt").read_text() == "mine"


OPERATIONS: dict[str, Callable[[FileOperations, str], object]] = {
    "list": lambda files, path: files.list(path, recursive=True),
    "read": lambda files, path: files.read(path),
    "write": lambda files, path: files.write(path, "overwritten"),
    "append": lambda files, path: files.write(path, "added", append=True),
    "delete": lambda files, path: files.delete(path, recursive=True),
}
#: What no operation does, whatever it is.
NEVER = {
    "up": "..",
    "up and down": "../outside/secret.txt",
    "up amid": "real/../../outside/secret.txt",
    "up and back": "../work/real/mine.txt",
    "up by a link": "real/up/outside/secret.txt",
    "absolute": "/etc/passwd",
    "absolute, beside": "{outside}/secret.txt",
    "absolute, up": "{work}/../outside/secret.txt",
    "a name that begins as the workspace's": "{work}er/secret.txt",
    "two slashes": "//etc/passwd",
    "a home": "~/secret.txt",
    "another one's home": "~root/.bashrc",
    "a linked directory": "to_directory/secret.txt",
    "a tree in a linked directory": "to_directory/tree",
    "a linked directory inside": "to_inner/mine.txt",
    "the root in proc": "/proc/self/root/{outside}/secret.txt",
    "the linked root in proc": "to_root/{outside}/secret.txt",
    "descriptors": "/proc/self/fd/0",
    "linked descriptors": "to_descriptors/0",
    "a working directory in proc": "/proc/self/cwd/secret.txt",
    "below a file": "real/mine.txt/secret.txt",
    "below a loop": "to_itself/secret.txt",
    "nothing": "",
    "blank": "  ",
    "NUL": "real\0/mine.txt",
    "half a character": "real/\ud800.txt",
    "a name that is too long": "x" * 300,
    "a path that is too long": "x/" * 3000,
    "a device": "/dev/null",
}
#: What is not opened and not written over; it is listed as what it is, and deleted as that name alone.
ODD = {
    "a link to a file": "to_file",
    "a link to a directory": "to_directory",
    "a link to a file inside": "to_inside",
    "a link to a directory inside": "to_inner",
    "a link to nothing": "to_nothing",
    "a link to itself": "to_itself",
    "a link into proc": "to_root",
    "a hard link": "hard.txt",
    "a pipe": "pipe",
    "a socket": "socket",
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("path", NEVER.values(), ids=NEVER)
def test_no_path_leads_out(untouched: Ground, operation: str, path: str) -> None:
    named = path.format(outside=untouched.outside, work=untouched.work) if "{" in path else path
    with pytest.raises((InvalidPath, FileRefused)):
        OPERATIONS[operation](untouched.files, named)
    assert untouched.unchanged()


@pytest.mark.parametrize("operation", ["read", "write", "append"])
@pytest.mark.parametrize("path", ODD.values(), ids=ODD)
def test_irregular_files_are_neither_read_nor_written(untouched: Ground, operation: str, path: str) -> None:
    with pytest.raises(FileRefused, match="is left alone: "):
        OPERATIONS[operation](untouched.files, path)
    assert untouched.unchanged()


@pytest.mark.parametrize("path", ODD.values(), ids=ODD)
def test_irregular_files_are_listed_and_deleted_without_their_targets(ground: Ground, path: str) -> None:
    [entry] = ground.files.list(path)
    assert entry.kind == ("file" if path == "hard.txt" else "link" if path.startswith("to_") else "other")
    assert ground.files.delete(path, recursive=True).deleted == (path,)
    assert not os.path.lexists(ground.work / path)
    assert ground.unchanged()
    assert (ground.work / "real" / "mine.txt").read_text() == "mine"


def test_a_list_enters_no_link_and_shows_each_as_one(ground: Ground) -> None:
    actual = ground.files.list(recursive=True)
    links = {entry.path for entry in actual if entry.kind == "link"}
    assert links == {path.name for path in ground.work.iterdir() if path.is_symlink()} | {"real/up"}
    assert SECRET not in str(actual)
    assert not [path for path in actual.paths if path.startswith(("to_directory/", "to_inner/", "real/up/"))]


def test_a_directory_is_deleted_with_its_links_and_not_with_what_they_lead_to(ground: Ground) -> None:
    tree = ground.work / "tree"
    tree.mkdir()
    for name, target in (("a", ground.outside), ("b", ground.outside / "secret.txt"), ("c", "../real")):
        (tree / name).symlink_to(target)
    ground.files.delete("tree", recursive=True)
    ground.files.delete_many(["to_*", "hard.txt", "pipe"])
    assert sorted(path.name for path in ground.work.iterdir()) == ["real", "socket"]
    assert ground.unchanged()


def test_a_batch_matches_nothing_outside(ground: Ground) -> None:
    done = ground.files.delete_many("**")
    assert done.refused == ()
    assert list(ground.work.iterdir()) == []
    assert ground.unchanged()


NAMES = {
    "another case": ("File.txt", "file.txt"),
    "another form of a character": ("\u00e9.txt", "e\u0301.txt"),
    "a look-alike": ("paypal", "p\u0430ypal"),
    "a wide letter": ("a.txt", "\uff41.txt"),
    "a dot of another kind": ("a.b", "a\u2024b"),
    "a space at the end": ("name", "name "),
    "an invisible character": ("name", "na\u200bme"),
    "a slash of another kind": ("a", "a\u2215b"),
    "a percent sign": ("a b", "a%20b"),
    "two dots of another kind": ("\u2025", "\u2024\u2024"),
    "a backslash": ("a", "..\\a"),
    "a home that is a name": ("a", "./~"),
    "a variable": ("a", "$HOME"),
    "bytes that are no text": ("a", "bad\udcff"),
}


@pytest.mark.parametrize(("item", "other"), NAMES.values(), ids=NAMES)
def test_a_name_is_its_bytes(ground: Ground, item: str, other: str) -> None:
    ground.files.write(f"names/{item}", "one")
    for operation in ("read", "delete"):
        with pytest.raises(InvalidPath, match="does not exist"):
            OPERATIONS[operation](ground.files, f"names/{other}" if not other.startswith("./") else other)
    at = ground.files.write(f"names/{other}", "other").path
    assert ground.files.read(f"names/{item}").text == "one"
    assert len(ground.files.list("names")) == 2
    assert at.encode() is not None
    ground.files.delete(f"names/{other}")
    assert [path.name for path in (ground.work / "names").iterdir()] == [item]


def test_other_file_systems_are_not_entered(branch: str) -> None:
    files = FileOperations(Access([FileRoot(Path("/"), "/")]))
    for call in (
        lambda: files.read("/proc/version"),
        lambda: files.list("/proc"),
        lambda: files.write("/proc/version", ""),
        lambda: files.delete("/proc/version"),
    ):
        with pytest.raises(FileRefused, match="another file system is mounted there"):
            call()


@pytest.mark.parametrize("name", ["null", "zero", "tty"])
def test_a_device_is_neither_read_nor_written(name: str) -> None:
    if not stat.S_ISCHR(Path("/dev", name).stat().st_mode):
        pytest.skip(f"/dev/{name} is no device here")
    files = FileOperations(Access([FileRoot(Path("/dev"), "/dev")]))
    for call in (lambda: files.read(name), lambda: files.write(name, "x"), lambda: files.write(name, "x", append=True)):
        with pytest.raises(FileRefused, match="it is not a regular file"):
            call()
    assert files.list(name).entries[0].kind == "other"


class Swapping:
    """A thread that exchanges two files, as fast as it can, until it is stopped."""

    def __init__(self, swap: Callable[[], None]) -> None:
        self._swap = swap
        self._begun = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):  # the operations of the test change the same names
                self._swap()
            self._begun.set()


def _swap_file(ground: Ground) -> Callable[[], None]:
    """``victim`` is a plain file, a link to outside, a hard link to outside, and nothing."""
    work, number = ground.work, iter(range(10**9))

    def swap() -> None:
        turn = next(number)
        created = work / f".made{turn}"
        if turn % 3 == 0:
            created.write_text("inside")
        elif turn % 3 == 1:
            created.symlink_to(ground.outside / "secret.txt")
        else:
            created.hardlink_to(ground.outside / "linked.txt")
        created.replace(work / "victim")

    return swap


def _swap_directory(ground: Ground) -> Callable[[], None]:
    """``way`` is a directory with a file ``secret.txt``, or a link to the directory outside that has one too."""
    way, numbers = ground.work / "way", iter(range(10**9))
    way.mkdir()
    (way / "secret.txt").write_text("inside")

    def swap() -> None:
        old = ground.work / f".old{next(numbers)}"
        way.rename(old)
        way.symlink_to(ground.outside)
        way.unlink()
        old.rename(way)

    return swap


SWAPS: dict[str, tuple[Callable[[Ground], Callable[[], None]], str]] = {
    "the file": (_swap_file, "victim"),
    "a directory midway": (_swap_directory, "way/secret.txt"),
}


@pytest.fixture(params=SWAPS)
def swapped(request: pytest.FixtureRequest, ground: Ground) -> Iterator[str]:
    """The path of what is swapped while the test runs."""
    make, path = SWAPS[request.param]
    with Swapping(make(ground)):
        yield path


@pytest.mark.parametrize("operation", OPERATIONS)
def test_paths_swapped_between_check_and_use_lead_nowhere(ground: Ground, swapped: str, operation: str) -> None:
    for _ in range(ROUNDS):
        with suppress(KernelexecError):
            assert SECRET not in str(OPERATIONS[operation](ground.files, swapped))
        assert ground.unchanged()


def test_a_tree_that_is_swapped_while_it_is_deleted_takes_nothing_outside_with_it(ground: Ground) -> None:
    with Swapping(_swap_directory(ground)):
        for _ in range(ROUNDS):
            with suppress(KernelexecError):
                ground.files.delete("way", recursive=True)
            with suppress(KernelexecError):
                ground.files.delete_many("way/**")
            with suppress(OSError):
                (ground.work / "way").mkdir()
            assert ground.unchanged()


def test_a_workspace_that_a_link_took_the_place_of_is_gone(ground: Ground) -> None:
    shutil.move(ground.work, ground.work.with_name("moved"))
    ground.work.symlink_to(ground.outside)
    for path in ("secret.txt", "tree"):
        for operation in OPERATIONS.values():
            with pytest.raises(KernelexecError, match="is gone"):
                operation(ground.files, path)
    assert ground.unchanged()
