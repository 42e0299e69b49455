"""What an agent may delete: what it has read or made, or what tools make again; nothing that a project lives by."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import FileRefused, InvalidPath, InvalidRequest
from kernelexec.results import NotDeleted
from kernelexec.workspace.agent_files.access import Access, FileRoot, walk
from kernelexec.workspace.agent_files.operations import CRITICAL, FileOperations, is_critical
from kernelexec.workspace.agent_files.tracking import PATTERNS, ReadTracker, is_generated_file
from tests.support.night import at_night

#: One path for each pattern.
GENERATED = {
    "__pycache__": "pkg/__pycache__/module.cpython-311.opt",
    ".pyc": "pkg/module.pyc",
    ".pyo": "module.pyo",
    ".pytest_cache": ".pytest_cache/v/cache",
    ".mypy_cache": "a/.mypy_cache/3.11/x.json",
    ".ruff_cache": ".ruff_cache/content",
    ".coverage": ".coverage",
    "*.egg-info": "src/kernel.egg-info/PKG-INFO",
    ".tox": ".tox/py311/log",
    ".nox": ".nox/tests",
    "node_modules": "web/node_modules/left-pad/index.js",
    ".next": ".next/static/x.js",
    ".nuxt": "web/.nuxt/x.js",
    "dist": "dist/package.whl",
    "build": "build/lib/x.py",
    ".DS_Store": "pictures/.DS_Store",
    "Thumbs.db": "pictures/Thumbs.db",
    "*.log": "logs/server.log",
    "*.swp": ".notes.txt.swp",
    "*.swo": ".notes.txt.swo",
    "*~": "notes.txt~",
}
WRITTEN = [
    *("mybuild.py", "distance.txt", "catalog.py"),
    *("building/x.py", "redist/x.py", "my.coverage.txt", "coverage", "a.pyc.txt", "pyc", "Build/x.py", "DIST/x", "x.LOG"),
    *("server.log/notes.txt", "node_modules.txt", "egg-info", "x.swap", "~notes", ".nextcloud/x", "thumbs.db", "log"),
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "work"
    path.mkdir()
    return path


def operations(work: Path, *, read_before_delete: bool = True) -> FileOperations:
    return FileOperations(Access([FileRoot(work, str(work))]), read_before_delete=read_before_delete)


@pytest.fixture
def files(work: Path) -> FileOperations:
    return operations(work)


@pytest.fixture
def tracker(files: FileOperations) -> ReadTracker:
    return files.tracker


def make(work: Path, *names: str) -> None:
    """Make files as a kernel would: no operation of ours knows of them."""
    for name in names:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")


def left(work: Path) -> list[str]:
    return sorted(str(path.relative_to(work)) for path in work.rglob("*") if not path.is_dir() or path.is_symlink())


def test_there_are_21_patterns_and_a_path_for_each() -> None:
    assert len(PATTERNS) == 21
    assert set(GENERATED) == set(PATTERNS)


@pytest.mark.parametrize("path", GENERATED.values(), ids=GENERATED)
def test_files_of_tools_are_generated(path: str) -> None:
    assert is_generated_file(path)


@pytest.mark.parametrize("path", WRITTEN)
def test_files_with_similar_names_are_not_generated(path: str) -> None:
    assert not is_generated_file(path)


def test_the_place_of_the_workspace_makes_nothing_in_it_generated(tmp_path: Path) -> None:
    work = tmp_path.resolve() / "build" / "dist"
    make(work, "precious.txt", "build/x")
    files = operations(work)
    assert files.tracker.can_delete("precious.txt")[0] is False
    assert files.tracker.can_delete("build/x") == (True, None)


def test_unread_files_cannot_be_deleted_until_read(files: FileOperations, tracker: ReadTracker, work: Path) -> None:
    make(work, "a.txt")
    reason = "a.txt has not been read: read it first, so that nothing is deleted unseen."
    assert tracker.can_delete("a.txt") == (False, reason)
    assert not tracker.was_read("a.txt")
    with pytest.raises(FileRefused, match=r"^a\.txt has not been read: read it first"):
        files.delete("a.txt")
    assert left(work) == ["a.txt"]
    files.read("a.txt")
    assert tracker.was_read(work / "a.txt")
    assert tracker.can_delete("./a.txt") == (True, None)
    assert files.delete("a.txt").deleted == ("a.txt",)
    assert left(work) == []


def test_written_files_can_be_deleted_and_appended_files_cannot(files: FileOperations, work: Path) -> None:
    make(work, "found.txt", "over.txt")
    files.write("made.txt", "x")
    files.write("over.txt", "y")
    files.write("found.txt", "y", append=True)
    files.list(recursive=True)
    assert [files.tracker.can_delete(name)[0] for name in ("made.txt", "over.txt", "found.txt")] == [True, True, False]
    assert files.tracker.get_stats() == {"read_files": 1, "created_files": 1, "total_tracked": 2}


def test_marks_count_and_are_forgotten(tracker: ReadTracker, work: Path) -> None:
    make(work, "read", "made", "both", "neither")
    for path in ("read", "both"):
        tracker.mark_as_read(path)
    for path in ("made", "both"):
        tracker.note_creation(path)
    assert [tracker.was_read(name) for name in ("read", "made", "both", "neither")] == [True, True, True, False]
    assert tracker.get_stats() == {"read_files": 2, "created_files": 2, "total_tracked": 3}
    tracker.clear()
    assert not tracker.was_read("read")
    assert tracker.can_delete("made")[0] is False
    assert tracker.get_stats() == {"read_files": 0, "created_files": 0, "total_tracked": 0}


def test_a_missing_file_or_directory_can_be_deleted(tracker: ReadTracker) -> None:
    assert tracker.can_delete("nothing") == (True, None)
    assert tracker.can_delete_directory("nothing") == (True, None)


def test_a_directory_says_the_first_three_unread_files_and_how_many(tracker: ReadTracker, work: Path) -> None:
    make(work, *(f"d/{number}.txt" for number in range(5)), "d/e/f.txt", "d/__pycache__/x.pyc", "one/a")
    (work / "d" / "link").symlink_to("0.txt")
    tracker.mark_as_read("d/1.txt")
    assert tracker.can_delete_directory("d") == (
        False,
        "d holds 5 files that have not been read: d/0.txt, d/2.txt, d/3.txt and 2 more. Read before deleting.",
    )
    assert tracker.can_delete("d") == tracker.can_delete_directory("d")
    assert tracker.can_delete_directory("one") == (
        False,
        "one holds 1 file that has not been read: one/a. Read before deleting.",
    )
    for name in ("0", "2", "3", "4"):
        tracker.mark_as_read(f"d/{name}.txt")
    tracker.note_creation("d/e/f.txt")
    assert tracker.can_delete_directory("d") == (True, None)


def test_a_directory_says_that_a_part_cannot_be_listed(
    tracker: ReadTracker, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.access.DEPTH_MAX", 1)
    make(work, "d/e/f/g.txt")
    reason = "d/e/f cannot be looked into: it is nested in more than 1 directories."
    assert tracker.can_delete_directory("d") == (False, reason)


def test_a_file_that_was_deleted_and_created_again_is_another_one(files: FileOperations, work: Path) -> None:
    files.write("a", "x")
    files.write("d/b", "x")
    files.delete("a")
    files.delete("d", recursive=True)
    make(work, "a", "d/b")
    assert [files.tracker.can_delete(name)[0] for name in ("a", "d/b", "d")] == [False, False, False]


@pytest.mark.parametrize("path", GENERATED.values(), ids=GENERATED)
def test_generated_files_are_deleted_unread(files: FileOperations, work: Path, path: str) -> None:
    make(work, path)
    if any(map(is_critical, path.split("/"))):
        assert files.tracker.can_delete(path) == (True, None)
        return
    files.delete(path)
    assert left(work) == []


def test_switched_off_nothing_need_be_read_also_in_a_batch(work: Path) -> None:
    files = operations(work, read_before_delete=False)
    make(work, "a", "b/c", "b/d")
    assert files.tracker.can_delete("a") == (True, None)
    assert files.tracker.can_delete_directory("b") == (True, None)
    assert files.delete_many("**/[ac]").deleted == ("a", "b/c")
    assert files.delete("b", recursive=True).deleted == ("b",)
    assert left(work) == []


def test_links_and_pipes_are_deleted_unread(files: FileOperations, work: Path) -> None:
    make(work, "a")
    (work / "second").hardlink_to(work / "a")
    (work / "link").symlink_to("a")
    os.mkfifo(work / "pipe")
    assert files.delete_many(["second", "link", "pipe"]).refused == ()
    assert left(work) == ["a"]
    assert files.tracker.can_delete("a")[0] is False


def test_the_memory_of_what_was_read_is_bounded(files: FileOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.tracking._TRACKED_MAX", 3)
    for number in range(5):
        files.tracker.mark_as_read(str(number))
    assert [files.tracker.was_read(str(number)) for number in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize("name", [*sorted(CRITICAL), ".env.production", ".GIT", "VENV", ".Env"])
@pytest.mark.parametrize("path", ["{}", *at_night("{}/inner", "project/{}"), "project/{}/inner"])
def test_critical_files_of_a_project_stay(work: Path, name: str, path: str) -> None:
    files = operations(work, read_before_delete=False)
    at = path.format(name)
    make(work, at if at.endswith("inner") else f"{at}/inner")
    before = left(work)
    with pytest.raises(FileRefused, match="is not deleted: a project may live by its"):
        files.delete(at, recursive=True)
    if at.startswith("project"):
        with pytest.raises(FileRefused, match=r"project is not deleted: it contains project/.*, which stays"):
            files.delete("project", recursive=True)
    done = files.delete_many("**")
    assert done.deleted == ()
    assert len(done.refused) == 1
    assert left(work) == before


@pytest.mark.parametrize(
    "name", ["git", ".gitignore", ".gitattributes", "env", "environment", ".envrc", "venvs", "node_modules.txt"]
)
def test_a_name_that_only_resembles_one_does_not_stay(work: Path, name: str) -> None:
    files = operations(work, read_before_delete=False)
    make(work, name)
    files.delete(name)
    assert left(work) == []


GUARDS: dict[str, tuple[Callable[[FileOperations], object], type[Exception], str]] = {
    "the workspace": (lambda files: files.delete("."), FileRefused, r"^\. is not deleted: it is the workspace"),
    "the workspace, recursively": (lambda files: files.delete(".", recursive=True), FileRefused, "is not deleted"),
    "the workspace in other words": (lambda files: files.delete("./", recursive=True), FileRefused, "is not deleted"),
    "a directory": (lambda files: files.delete("d"), FileRefused, "^d is not empty: give recursive=True"),
    "what is not there": (lambda files: files.delete("nothing"), InvalidPath, "does not exist"),
    "unread files in a directory": (
        lambda files: files.delete("d", recursive=True),
        FileRefused,
        r"^d holds 2 files that have not been read: d/a, d/b\. Read before deleting\.$",
    ),
    "no pattern": (lambda files: files.delete_many([]), InvalidRequest, "include names no pattern"),
    "a pattern that leads up": (lambda files: files.delete_many(["../*"]), InvalidRequest, "^include="),
    "a bad exception": (lambda files: files.delete_many("*", exclude=["/x"]), InvalidRequest, "^exclude="),
}


@pytest.mark.parametrize(("call", "error", "message"), GUARDS.values(), ids=GUARDS)
def test_guards_say_what_they_keep(
    files: FileOperations, work: Path, call: Callable[[FileOperations], object], error: type[Exception], message: str
) -> None:
    make(work, "d/a", "d/b", "e")
    with pytest.raises(error, match=message):
        call(files)
    assert left(work) == ["d/a", "d/b", "e"]


def test_a_workspace_that_is_called_by_a_critical_name_can_be_worked_in(tmp_path: Path) -> None:
    work = tmp_path.resolve() / "venv" / "work"
    make(work, "a")
    operations(work, read_before_delete=False).delete("a")
    assert left(work) == []


def test_an_empty_directory_needs_no_word(files: FileOperations, work: Path) -> None:
    (work / "empty").mkdir()
    assert files.delete("empty").deleted == ("empty",)
    assert list(work.iterdir()) == []


def test_a_tree_is_deleted_whatever_its_modes(work: Path) -> None:
    files = operations(work, read_before_delete=False)
    make(work, "d/e/f", "d/g", "keep")
    (work / "d" / "e" / "f").chmod(0)
    files.delete("d", recursive=True)
    assert left(work) == ["keep"]


def test_more_than_one_call_looks_at_is_not_deleted(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.access.ENTRIES_MAX", 5)
    files = operations(work, read_before_delete=False)
    make(work, *(f"d/{number}" for number in range(6)))
    with pytest.raises(FileRefused, match=r"^d holds more than 5 entries: delete parts of it"):
        files.delete("d", recursive=True)
    assert len(left(work)) == 6
    done = files.delete_many("d/*")
    assert (len(done.deleted), done.complete) == (4, False)
    assert files.delete_many("d/*").complete


def test_a_batch_says_what_went_and_what_not_and_why(files: FileOperations, work: Path) -> None:
    make(work, "a.tmp", "b.tmp", "keep.tmp", "d/c.tmp", "d/c.txt", ".git/x.tmp", "x.log")
    files.read("a.tmp")
    files.read("d/c.tmp")
    done = files.delete_many(["*.tmp", "*.log"], exclude="keep.*")
    assert done.deleted == ("a.tmp", "d/c.tmp", "x.log")
    reason = "b.tmp has not been read: read it first, so that nothing is deleted unseen."
    assert done.refused == (NotDeleted("b.tmp", reason),)
    assert done.complete
    assert left(work) == [".git/x.tmp", "b.tmp", "d/c.txt", "keep.tmp"]


def test_a_file_that_goes_meanwhile_is_neither_deleted_nor_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(*value: Any, **more: Any) -> Any:
        seen = walk(*value, **more)
        (work / "a.tmp").unlink()
        return seen

    for name in ("a.tmp", "b.tmp"):
        (work / name).write_text("x")
    monkeypatch.setattr("kernelexec.workspace.agent_files.operations.walk", walked)
    done = operations(work, read_before_delete=False).delete_many("*.tmp")
    assert (done.deleted, done.refused) == (("b.tmp",), ())


def test_a_batch_takes_a_directory_that_a_pattern_names_with_all_in_it(work: Path) -> None:
    files = operations(work, read_before_delete=False)
    make(work, "pkg/__pycache__/a.pyc", "pkg/a.py", "cache/x/y", "cache/x/keep", "cache/z")
    (work / "cache" / "empty").mkdir()
    done = files.delete_many(["__pycache__", "cache"], exclude=["keep"])
    assert done.refused == ()
    assert set(done.deleted) == {"cache/x/y", "cache/z", "cache/empty", "pkg/__pycache__", "pkg/__pycache__/a.pyc"}
    assert left(work) == ["cache/x/keep", "pkg/a.py"]
    assert not (work / "pkg" / "__pycache__").exists()


def test_directories_that_are_nested_too_deep_are_named_and_stay(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.workspace.agent_files.access.DEPTH_MAX", 2)
    files = operations(work, read_before_delete=False)
    make(work, "a/b/c/d/x.tmp", "a/b/y.tmp")
    done = files.delete_many("*.tmp")
    assert done.deleted == ("a/b/y.tmp",)
    assert done.refused == (NotDeleted("a/b/c", "It cannot be looked into: it is nested in more than 2 directories."),)
    assert not files.list(recursive=True).complete
    assert left(work) == ["a/b/c/d/x.tmp"]
