"""The files that changed in a workspace, as the system reports them and as they are compared: both give the same."""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec.workspace import FileChanges, FileWatcher, cell_files, file_watch
from kernelexec.workspace.file_watch import WatchedTree, WatchRefused, read_inode_clock
from kernelexec.workspace.system_calls import IGNORED, FileEvent, Inotify
from tests.support.night import at_night


@contextmanager
def watching() -> Iterator[FileWatcher]:
    """Return a watcher that no event loop reads."""
    watcher = FileWatcher()
    yield watcher
    watcher.stop()
    watcher.inotify.close()


@pytest.fixture
def watcher() -> Iterator[FileWatcher]:
    with watching() as watcher:
        yield watcher


def rewrite(path: Path, text: str) -> None:
    """Write the same path again, a second later by its time."""
    seen = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(seen + 10**9, seen + 10**9))


def make(root: Path, *names: str) -> None:
    """Make empty files, and the directories that they are in."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def grow_unseen(path: Path) -> None:
    """Change the size and not the time."""
    seen = path.stat().st_mtime_ns
    path.write_text("more")
    os.utime(path, ns=(seen, seen))


def write_unseen(path: Path) -> None:
    """Change the content, and neither size nor time."""
    seen = path.stat().st_mtime_ns
    path.write_text("y")
    os.utime(path, ns=(seen, seen))


def put_over(root: Path) -> None:
    rewrite(root / "b", "other")
    (root / "b").replace(root / "a")


def become_link(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").symlink_to("b")


CHANGES: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "nothing": (Path.exists, ()),
    "a new file": (lambda root: make(root, "new"), ("new",)),
    "a new file below": (lambda root: make(root, "d/new"), ("d/new",)),
    "a file in a new directory": (lambda root: make(root, "e/f/g"), ("e/f/g",)),
    "an empty directory": (lambda root: (root / "e").mkdir(), ()),
    "a file written again": (lambda root: rewrite(root / "a", "a"), ("a",)),
    "a file that grew": (lambda root: (root / "b").write_text("more"), ("b",)),
    "a file that grew and kept its time": (lambda root: grow_unseen(root / "b"), ("b",)),
    "a file that kept its size and time": (lambda root: write_unseen(root / "b"), ("b",)),
    "new rights": (lambda root: (root / "b").chmod(0o600), ("b",)),
    "a file removed": (lambda root: (root / "a").unlink(), ()),
    "a file renamed": (lambda root: (root / "a").rename(root / "z"), ("z",)),
    "a file put over another": (put_over, ("a",)),
    "a file that was only read": (lambda root: (root / "a").read_text(), ()),
    "the ignored file": (lambda root: make(root, "own.ipynb"), ()),
    "its namesake below": (lambda root: make(root, "d/own.ipynb"), ("d/own.ipynb",)),
    "caches": (lambda root: make(root, "d/__pycache__/a.pyc", ".pytest_cache/b", "d/node_modules/c/d.js"), ()),
    "a repository": (lambda root: make(root, ".git/refs/x"), ()),
    "a file that has a cache's name": (lambda root: make(root, "node_modules"), ("node_modules",)),
    "a hidden file": (lambda root: make(root, ".hidden", ".config/x"), (".config/x", ".hidden")),
    "a link to a file": (lambda root: (root / "link").symlink_to("a"), ()),
    "a link to a directory outside": (lambda root: (root / "link").symlink_to("/usr"), ()),
    "a link to itself": (lambda root: (root / "link").symlink_to("link"), ()),
    "a file that became a link": (become_link, ()),
    "a named pipe": (lambda root: os.mkfifo(root / "pipe"), ()),
    "notebooks of this and another owner": (lambda root: make(root, "own.ipynb", "own-2.ipynb", "x-2.ipynb"), ("x-2.ipynb",)),
    "many, sorted": (lambda root: make(root, "z", "m", "d/x", "c"), ("c", "d/x", "m", "z")),
}


@pytest.fixture(params=["reported", "compared"])
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, FileChanges]]:
    (tmp_path / "d").mkdir()
    for name in ("a", "b", "d/c"):
        (tmp_path / name).write_text("x")
    with watching() as watcher:
        is_reported = request.param == "reported"
        changes = FileChanges(tmp_path, ignore=frozenset({"own.ipynb"}), watcher=watcher if is_reported else None)
        yield tmp_path, changes
        changes.close()


@pytest.mark.parametrize(("act", "seen"), CHANGES.values(), ids=CHANGES)
def test_new_and_changed_files_are_reported_once(
    watched: tuple[Path, FileChanges], act: Callable[[Path], Any], seen: tuple[str, ...]
) -> None:
    root, watch = watched
    act(root)
    assert watch.changes() == seen
    assert watch.changes() == ()


def test_a_file_that_comes_back_is_reported_again(watched: tuple[Path, FileChanges]) -> None:
    root, watch = watched
    (root / "a").unlink()
    assert watch.changes() == ()
    (root / "a").write_text("x")
    assert watch.changes() == ("a",)


def test_names_are_reported_up_to_a_bound_and_the_rest_are_counted(
    watched: tuple[Path, FileChanges], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, changes = watched
    for module in (file_watch, cell_files):
        monkeypatch.setattr(module, "PATHS_BYTES_MAX", 5000)
    make(root, *(f"{number}{'x' * 200}" for number in range(50)))
    seen = changes.changes()
    assert 4000 < sum(map(sys.getsizeof, seen)) <= 5000
    left = 50 - len(seen)
    assert changes.note == f"files is not complete: its names are too long together, and {left} more files changed."
    make(root, "e")
    assert changes.changes() == ("e",)
    assert changes.note is None


def test_a_workspace_that_is_gone_has_no_changes_and_one_in_its_place_has(tmp_path: Path, watcher: FileWatcher) -> None:
    root = tmp_path / "gone"
    for watch in (FileChanges(root), FileChanges(root, watcher=watcher)):
        assert watch.changes() == ()
        make(root, "a", "d/b")
        assert watch.changes() == ("a", "d/b")
        make(root, "d/c")
        assert watch.changes() == ("d/c",)
        root.rename(tmp_path / "moved")
        assert watch.changes() == ()
        make(root, "d/e")
        make(tmp_path / "moved", "d/f")
        assert watch.changes() == ("d/e",)
        shutil.rmtree(root)
        shutil.rmtree(tmp_path / "moved")


def test_a_name_that_is_no_text_can_still_be_written_as_json(watched: tuple[Path, FileChanges]) -> None:
    root, watch = watched
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff")).touch()
    (reported,) = watch.changes()
    assert json.dumps(reported, ensure_ascii=False).encode()


def test_a_file_is_reported_that_a_memory_map_changed_which_has_ended(tmp_path: Path, watcher: FileWatcher) -> None:
    for name in ("mapped", "opened"):
        (tmp_path / name).write_bytes(bytes(4096))
    wait_for_tick()
    watch = FileChanges(tmp_path, watcher=watcher)
    with (tmp_path / "opened").open("rb+"), (tmp_path / "mapped").open("rb+") as file:
        mapped = mmap.mmap(file.fileno(), 4096)
    with mapped:
        mapped[0] = 1
    assert watch.changes() == ("mapped",)
    assert watch.changes() == ()


def test_sessions_of_one_directory_have_changes_of_their_own(tmp_path: Path, watcher: FileWatcher) -> None:
    (tmp_path / "d").mkdir()
    whole, below = FileChanges(tmp_path, watcher=watcher), FileChanges(tmp_path / "d", watcher=watcher)
    make(tmp_path, "d/a")
    assert (whole.changes(), below.changes()) == (("d/a",), ("a",))
    below.close()
    make(tmp_path, "d/b", "c")
    assert whole.changes() == ("c", "d/b")


def test_a_look_after_an_overflow_is_complete(tmp_path: Path, watcher: FileWatcher) -> None:
    make(tmp_path, *(f"d/{number}" for number in range(100)), "e/a")
    wait_for_tick()
    watch = FileChanges(tmp_path, watcher=watcher)
    events_max = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for _ in range(events_max // 200 + 1):
        for number in range(100):
            (tmp_path / "d" / str(number)).chmod(0o600)
        for number in range(100):
            (tmp_path / "d" / str(number)).chmod(0o644)
    make(tmp_path, "new/deep/x")
    (tmp_path / "e").rename(tmp_path / "f")
    assert watch.is_slow
    watch.gather()
    assert watch.changes() == tuple(sorted((*(f"d/{number}" for number in range(100)), "f/a", "new/deep/x")))
    assert watch.note is None
    make(tmp_path, "new/deep/y")
    assert watch.changes() == ("new/deep/y",)


def test_a_look_ends_while_another_program_writes_faster_than_its_events_are_read(
    tmp_path: Path, watcher: FileWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Inotify.read

    def read_while_files_change(inotify: Inotify) -> bytes:
        content = read(inotify)
        make(tmp_path, "a", "b")
        return content

    watch = FileChanges(tmp_path, watcher=watcher)
    make(tmp_path, "a")
    monkeypatch.setattr(Inotify, "read", read_while_files_change)
    assert watch.changes() == ("a",)
    assert watch.changes() == ("a", "b")


def test_a_workspace_with_too_many_directories_is_compared_instead(
    tmp_path: Path, watcher: FileWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "DIRECTORIES_MAX", 10)
    watch = FileChanges(tmp_path, watcher=watcher)
    make(tmp_path, *(f"d{number}/a" for number in range(20)))
    assert len(watch.changes()) == 20
    assert watch.note is None
    make(tmp_path, "d3/b")
    assert watch.changes() == ("d3/b",)
    later = FileChanges(tmp_path, watcher=watcher)
    make(tmp_path, "d4/b")
    assert later.changes() == ("d4/b",)


def test_a_workspace_whose_directories_have_too_long_paths_is_compared_instead(
    tmp_path: Path, watcher: FileWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "PATHS_BYTES_MAX", 1000)
    watch = FileChanges(tmp_path, watcher=watcher)
    make(tmp_path, "/".join(["d" * 200] * 5 + ["a"]))
    assert watch.changes() == ("/".join(["d" * 200] * 5 + ["a"]),)
    make(tmp_path, "b")
    assert watch.changes() == ("b",)


def test_the_end_of_a_watch_without_a_path_makes_no_room_for_paths(
    tmp_path: Path, watcher: FileWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "PATHS_BYTES_MAX", 1000)
    tree = WatchedTree(watcher, tmp_path, frozenset())
    for number in range(100):
        tree.handle(FileEvent(10_000 + number, IGNORED, ""))
    make(tmp_path, "/".join(["d" * 200] * 5 + ["a"]))
    with pytest.raises(WatchRefused):
        tree.look()
    tree.close()


def test_a_user_without_watches_gets_compared_files(
    tmp_path: Path, watcher: FileWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Inotify, "add", refuse)
    watch = FileChanges(tmp_path, watcher=watcher)
    make(tmp_path, "a/b")
    assert watch.changes() == ("a/b",)
    monkeypatch.setattr(cell_files, "ENTRIES_MAX", 5)
    make(tmp_path, *(f"d/{number}" for number in range(30)))
    assert watch.changes()
    assert watch.note is not None
    assert "files may not be complete: no watch is left" in watch.note


def test_a_large_workspace_is_compared_up_to_a_bound_and_no_other_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, *map(str, range(30)))
    wait_for_tick()
    monkeypatch.setattr(cell_files, "ENTRIES_MAX", 10)
    watch = FileChanges(tmp_path)
    assert watch.changes() == ()
    for number in range(20):
        (tmp_path / str(number)).unlink()
    assert watch.changes() == ()
    assert watch.note is None
    (tmp_path / "20").unlink()
    make(tmp_path, "a")
    assert watch.changes() == ("a",)
    make(tmp_path, *map(str, range(40, 60)))
    assert set(watch.changes()) <= set(map(str, range(40, 60)))
    assert watch.note == "files may not be complete: this system does not report changes, and only 10 files were compared."


def wait_for_tick() -> None:
    """Wait until the clock of inodes is after the times of all inodes; some have finer ones."""
    begin = time.time_ns()
    while read_inode_clock() <= begin:
        time.sleep(0.001)


class Changer:
    """Random changes in a directory."""

    def __init__(self, root: Path, outside: Path, seed: int) -> None:
        self.root, self.outside = root, outside
        self.random = random.Random(seed)  # noqa: S311 - a reproducible test, no secret
        for number in range(5):
            make(root, f"d{number}/e/f")

    def change(self) -> None:
        actions = (self.write, self.append, self.make_deep, self.remove, self.remove_tree, self.move, self.move_out)
        with suppress(OSError):
            self.random.choice((*actions, self.move_in, self.move_file, self.change_mode, self.link))()

    def directory(self) -> Path:
        return Path(self.random.choice([path for path, _, _ in os.walk(self.root)]))

    def name(self) -> Path:
        return self.directory() / f"n{self.random.randrange(12)}"

    def file(self) -> Path:
        files = [Path(path) / name for path, _, names in os.walk(self.root) for name in names]
        return self.random.choice(files or [self.root / "none"])

    def write(self) -> None:
        self.name().write_text(str(self.random.random()))

    def append(self) -> None:
        with self.file().open("a") as file:
            file.write("more")

    def make_deep(self) -> None:
        make(self.name(), f"x/y/z{self.random.randrange(3)}/deep", "x/y/mid")

    def remove(self) -> None:
        self.file().unlink()

    def remove_tree(self) -> None:
        shutil.rmtree(self.subdirectory())

    def move(self) -> None:
        self.subdirectory().rename(self.name())

    def move_out(self) -> None:
        self.subdirectory().rename(self.outside / str(self.random.random()))

    def move_in(self) -> None:
        self.random.choice([*self.outside.iterdir(), self.outside / "none"]).rename(self.name())

    def move_file(self) -> None:
        self.file().rename(self.name())

    def change_mode(self) -> None:
        self.file().chmod(self.random.choice([0o600, 0o644, 0o640]))

    def link(self) -> None:
        self.name().symlink_to(self.random.choice(["/usr", "..", "x"]))

    def subdirectory(self) -> Path:
        directory = self.directory()
        return directory if directory != self.root else self.root / "none"


@pytest.mark.parametrize("overflows", [False, True], ids=["all events", "lost events"])
@pytest.mark.parametrize("seed", [0, 1, *at_night(2, 3, 4)])
def test_reported_and_compared_changes_are_the_same(
    tmp_path: Path, watcher: FileWatcher, seed: int, *, overflows: bool
) -> None:
    for path in (root := tmp_path / "root", outside := tmp_path / "outside"):
        path.mkdir()
    changer = Changer(root, outside, seed)
    wait_for_tick()
    reported, compared = FileChanges(root, watcher=watcher), FileChanges(root)
    for _ in range(10):
        wait_for_tick()
        for _ in range(changer.random.randrange(50)):
            changer.change()
            if changer.random.random() < 0.2:
                watcher.drain(0.0001)
            for tree in watcher.trees:
                if changer.random.random() < 0.1:
                    tree.advance(0.0001)
                tree.must_walk |= overflows and changer.random.random() < 0.02
        assert reported.changes() == compared.changes()
