"""A session's directory: what lies inside of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import InvalidRequest, InvalidWorkDir
from kernelexec.workspace import Workspace
from kernelexec.workspace.directory import check_name, explain_unusable_workspace


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
def test_missing_directories_outside_are_reported_as_outside(location: Workspace, work_dir: str) -> None:
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
def test_missing_directories_are_refused(location: Workspace, work_dir: str) -> None:
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


def test_a_link_in_the_place_of_branches_leads_to_no_workspace(tmp_path: Path) -> None:
    branches = tmp_path / "work/.kernelexec/branches"
    (branches / "b").mkdir(parents=True)
    (tmp_path / "outside/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "work")
    paths = [tmp_path / name / ".kernelexec/branches/b" for name in ("work", "link")]
    assert {Workspace.at(path).path for path in (*paths, branches / "../branches/b")} == {branches / "b"}
    assert {explain_unusable_workspace(path, None) for path in paths} == {None}
    branches.rename(tmp_path / "work/moved")
    branches.symlink_to(tmp_path / "outside")
    for path in paths:
        with pytest.raises(InvalidWorkDir, match=r"a link below \.kernelexec is in its place"):
            Workspace.at(path)
        assert "a link below .kernelexec is in its place" in str(explain_unusable_workspace(path, None))


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
