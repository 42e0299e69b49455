"""A session's directory: what lies inside of it, and what changed there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import InvalidRequest, InvalidWorkDir
from kernelexec.workspace import FileChanges, Workspace
from kernelexec.workspace import file_changes as changes
from kernelexec.workspace.directory import check_name


@pytest.fixture
def location(tmp_path: Path) -> Workspace:
    """A workspace with things around it and links that lead everywhere."""
    for name in ("parent/work/inner/deep", "parent/worker", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    work = tmp_path / "parent" / "work"
    (work / "file.txt").write_text("x")
    links = {
        "to_inner": "inner",
        "to_file": "file.txt",
        "to_elsewhere": str(tmp_path / "elsewhere"),
        "to_root": "/",
        "to_parent": "..",
        "to_link": "to_elsewhere",
        "to_nothing": "nothing",
        "to_itself": "to_itself",
        "inner/back": "../inner",
        "inner/up": "../..",
    }
    for name, target in links.items():
        (work / name).symlink_to(target)
    (tmp_path / "elsewhere" / "back").symlink_to(work)
    return Workspace.at(work)


@pytest.mark.parametrize(
    ("work_dir", "actual"),
    [
        ("", ""),
        (".", ""),
        ("inner", "inner"),
        ("inner/", "inner"),
        ("./inner/../inner//deep", "inner/deep"),
        ("inner/deep/../..", ""),
        ("../work/inner", "inner"),
        ("to_inner", "inner"),
        ("to_inner/deep", "inner/deep"),
        ("inner/back/back/deep", "inner/deep"),
        ("to_parent/work/inner", "inner"),
        ("to_elsewhere/back/inner", "inner"),
        (Path("inner"), "inner"),
    ],
)
def test_a_directory_inside_is_given_without_links(location: Workspace, work_dir: str | Path, actual: str) -> None:
    assert location.directory(work_dir) == str(location.path / actual)
    assert location.directory(location.path / work_dir) == str(location.path / actual)


@pytest.mark.parametrize("work_dir", ["..", "inner/../..", "../worker", "to_elsewhere", "to_root", "to_parent", "to_link", "/"])
def test_a_directory_outside_is_refused(location: Workspace, work_dir: str) -> None:
    with pytest.raises(InvalidWorkDir, match=r"is outside of the workspace .*: give a directory inside of it"):
        location.directory(work_dir)


@pytest.mark.parametrize("work_dir", ["/etc", "/proc/self/cwd/..", "inner/up", "../../elsewhere", "to_root/tmp", "../work/.."])
def test_a_way_out_through_several_steps_is_refused(location: Workspace, work_dir: str) -> None:
    with pytest.raises(InvalidWorkDir, match="is outside of the workspace"):
        location.directory(work_dir)


@pytest.mark.parametrize("work_dir", ["/context/data", "../nothing", "inner/../../nothing"])
def test_what_is_outside_is_called_so_though_it_is_not_here(location: Workspace, work_dir: str) -> None:
    with pytest.raises(InvalidWorkDir, match="is outside of the workspace"):
        location.directory(work_dir)


@pytest.mark.parametrize("work_dir", ["file.txt", "to_file"])
def test_a_file_is_no_directory(location: Workspace, work_dir: str) -> None:
    with pytest.raises(InvalidWorkDir, match=f"^work_dir '{work_dir}' is not a directory"):
        location.directory(work_dir)


@pytest.mark.parametrize(
    "work_dir",
    ["nothing", "to_nothing", "to_itself", "inner/nothing", "~", "x" * 300, "x/" * 3000, "\udcff"],
)
def test_what_is_not_there_is_refused(location: Workspace, work_dir: str) -> None:
    with pytest.raises(InvalidWorkDir, match=r"does not exist: create it first\.$"):
        location.directory(work_dir)


def test_a_name_that_no_file_can_have_is_refused(location: Workspace) -> None:
    with pytest.raises(InvalidWorkDir):
        location.directory("\ud800")


@pytest.mark.parametrize("work_dir", ["\0", "inner\0", "inner\0/.."])
def test_nul_is_refused(location: Workspace, work_dir: str) -> None:
    with pytest.raises(InvalidWorkDir, match="NUL"):
        location.directory(work_dir)


@pytest.mark.parametrize("path", ["nothing", "file", "loop", "a\0b"])
def test_only_a_directory_that_exists_can_be_chosen(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InvalidWorkDir):
        Workspace.at(tmp_path / path)


def test_no_directory_at_all_is_not_taken_for_the_current_one() -> None:
    with pytest.raises(InvalidWorkDir, match=r"^work_dir is empty: name a directory, or leave it out"):
        Workspace.at("")


def test_a_directory_that_may_not_be_looked_at_is_not_called_missing(
    location: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: Any) -> Path:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "resolve", refuse)
    with pytest.raises(InvalidWorkDir, match=r"^work_dir 'inner' cannot be reached: Permission denied\.$"):
        location.directory("inner")


def test_a_chosen_directory_may_be_a_link_and_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert Workspace.at(tmp_path / "link").path == (tmp_path / "real").resolve()


def test_a_session_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    created = Workspace.create_for_session(tmp_path / "not" / "yet", "a")
    assert created.path == (tmp_path / "not" / "yet" / "a").resolve()
    (created.path / "kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "not")
    again = Workspace.create_for_session(tmp_path / "link" / "yet", "a")
    assert again.path == created.path
    assert (again.path / "kept").exists()


def test_a_directory_of_its_own_counts_from_the_current_one_or_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Workspace.create_for_session(Path("w"), "a").path == tmp_path.resolve() / "w" / "a"
    assert Workspace.create_for_session(Path("~/w"), "a").path == tmp_path.resolve() / "home" / "w" / "a"


@pytest.mark.parametrize("target", ["there", "/", "nowhere"])
def test_a_link_in_the_place_of_the_directory_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "a").symlink_to(target)
    with pytest.raises(InvalidWorkDir, match=r"is a symbolic link|cannot be made"):
        Workspace.create_for_session(tmp_path, "a")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("parent", ["file", "file/below"])
def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidWorkDir, match="cannot be made: Not a directory"):
        Workspace.create_for_session(tmp_path / parent, "a")
    with pytest.raises(InvalidWorkDir, match="cannot be made: File exists"):
        Workspace.create_for_session(tmp_path, "file")


@pytest.mark.parametrize("name", ["a", "A9", "a.b-c_d", "a..", "x" * 64, "0", "con"])
def test_a_plain_file_name_is_a_name(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "-a", "_a", "a/b", "a\\b", "a b", "a\n", "a\0", "\u00e9", "\u0661", "~", "x" * 65, None, 1, b"a"],
)
def test_anything_else_is_no_name(tmp_path: Path, name: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^session name .*: 1 to 64 letters, digits, dots, dashes and underscores"):
        Workspace.create_for_session(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


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
    "many, sorted": (lambda root: make(root, "z", "m", "d/x", "c"), ("c", "d/x", "m", "z")),
}


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Path, FileChanges]:
    (tmp_path / "d").mkdir()
    for name in ("a", "b", "d/c"):
        (tmp_path / name).write_text("x")
    return tmp_path, FileChanges(tmp_path, ignore=frozenset({"own.ipynb"}))


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


def test_a_workspace_that_is_gone_has_no_changes(tmp_path: Path) -> None:
    watch = FileChanges(tmp_path / "gone")
    assert watch.changes() == ()


def test_a_name_that_is_no_text_can_still_be_written_as_json(watched: tuple[Path, FileChanges]) -> None:
    root, watch = watched
    Path(os.fsdecode(os.fsencode(root) + b"/bad\xff")).touch()
    (reported,) = watch.changes()
    assert json.dumps(reported, ensure_ascii=False).encode()


def test_a_large_workspace_is_looked_at_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = FileChanges(tmp_path)
    make(tmp_path, *map(str, range(30)))
    monkeypatch.setattr(changes, "ENTRIES_MAX", 10)
    assert len(watch.changes()) == 10
