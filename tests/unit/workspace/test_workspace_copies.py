"""A workspace is copied for a branch without a link being followed, and its changes are brought back."""

from __future__ import annotations

import math
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import InvalidRequest
from kernelexec.workspace import workspace_copies
from kernelexec.workspace.agent_files.access import WalkEntry, WalkResult, walk
from kernelexec.workspace.workspace_copies import (
    CopiedFiles,
    bring_back,
    copy_workspace,
    find_changes,
    make_copy_directory,
    put_back,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "sub/deep").mkdir(parents=True)
    (top / "file").write_bytes(b"content")
    (top / "sub/deep/program").write_text("#!/bin/sh\n")
    (top / "sub/deep/program").chmod(0o755)
    (top / "empty").mkdir()
    (top / ".git").mkdir()
    (top / ".git/HEAD").write_text("main")
    for shared in (".venv", "node_modules", ".kernelexec", ".journals"):
        (top / shared).mkdir()
        (top / shared / "kept").touch()
    return top


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    path.mkdir()
    return path


def listed(top: Path) -> list[str]:
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def test_files_have_their_content_rights_and_times(source: Path, target: Path) -> None:
    os.utime(source / "file", ns=(1, 2))
    copied = copy_workspace(source, target)
    assert listed(target) == [".git", ".git/HEAD", "empty", "file", "sub", "sub/deep", "sub/deep/program"]
    assert (target / "file").read_bytes() == b"content"
    assert (target / "file").stat().st_mtime_ns == 2
    assert stat.S_IMODE((target / "sub/deep/program").stat().st_mode) == 0o755
    assert copied.describe_left_out() is None


@pytest.mark.parametrize("is_quick", [True, False], ids=["by the system", "by pieces"])
def test_large_and_sparse_files_are_whole(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, is_quick: bool) -> None:  # noqa: FBT001 - a parameter
    if not is_quick:
        monkeypatch.delattr(os, "copy_file_range")
    content = os.urandom(3_000_001)
    (source / "large").write_bytes(content)
    with (source / "sparse").open("wb") as file:
        file.truncate(5_000_000)
    copy_workspace(source, target)
    assert (target / "large").read_bytes() == content
    assert (target / "sparse").read_bytes() == bytes(5_000_000)


def test_links_are_copied_and_not_followed(source: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("key")
    (source / "out").symlink_to(tmp_path / "secret")
    (source / "broken").symlink_to("nowhere")
    os.mkfifo(source / "pipe")
    copied = copy_workspace(source, target)
    assert ((target / "out").readlink(), (target / "broken").readlink()) == (tmp_path / "secret", Path("nowhere"))
    assert "out/key" not in copied.states
    assert copied.describe_left_out() == "These files were not copied: pipe."


def test_files_over_the_bound_are_left_out_and_the_rest_copied(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_copies, "COPIED_BYTES", 1000)
    for number in range(30):
        (source / f"big{number:02}").write_bytes(b"b" * 600)
    copied = copy_workspace(source, target)
    assert (target / "big00").exists()
    assert (target / "file").read_bytes() == b"content"
    assert len(copied.left_out) == 29
    assert str(copied.describe_left_out()).endswith("and 9 more.")


def test_files_that_cannot_be_copied_take_no_room(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_file = workspace_copies._copy_file

    def copy_readable(top: int, entry: WalkEntry, *others: Any) -> None:
        if entry.parts[0].startswith("unreadable"):
            raise PermissionError(13, "Permission denied")
        copy_file(top, entry, *others)

    monkeypatch.setattr(workspace_copies, "_copy_file", copy_readable)
    monkeypatch.setattr(workspace_copies, "COPIED_BYTES", 100)
    for name, size in (("unreadable", 60), ("unreadable too", 60), ("well", 50)):
        (source / name).write_bytes(bytes(size))
    assert copy_workspace(source, target).left_out == ["unreadable", "unreadable too"]


def bring_changes(
    branch: Path, parent: Path, copied: CopiedFiles, *, ignore: frozenset[str] = frozenset(), seconds: float = math.inf
) -> CopiedFiles:
    changes = find_changes(branch, copied, ignore=ignore)
    return bring_back(branch, parent, copied, changes, seconds=seconds)


def test_only_changes_come_back(source: Path, target: Path) -> None:
    (source / "gone").touch()
    copied = copy_workspace(source, target)
    (source / "later").touch()
    (source / "file").write_text("changed by the parent")
    (target / "sub/deep/program").write_text("changed")
    (target / "gone").unlink()
    (target / "empty").rmdir()
    (target / "new").mkdir()
    (target / "new/link").symlink_to("file")
    (target / "branch.ipynb").touch()
    changed = bring_changes(target, source, copied, ignore=frozenset({"branch.ipynb"}))
    assert sorted(changed.states) == ["new", "new/link", "sub/deep/program"]
    assert (source / "file").read_text() == "changed by the parent"
    assert (source / "sub/deep/program").read_text() == "changed"
    assert listed(source) == [
        *(".git", ".git/HEAD", ".journals", ".journals/kept", ".kernelexec", ".kernelexec/kept", ".venv", ".venv/kept"),
        *("file", "later", "new", "new/link", "node_modules", "node_modules/kept", "sub", "sub/deep", "sub/deep/program"),
    ]


def test_nothing_is_written_through_a_link_of_the_parent(source: Path, target: Path, tmp_path: Path) -> None:
    copied = copy_workspace(source, target)
    (tmp_path / "outside").mkdir()
    (target / "sub/deep/program").write_text("changed")
    (target / "file").write_text("changed")
    (source / "sub").rename(source / "moved")
    (source / "sub").symlink_to(tmp_path / "outside")
    (source / "file").unlink()
    (source / "file").symlink_to(tmp_path / "outside/file")
    changed = bring_changes(target, source, copied)
    assert listed(tmp_path / "outside") == []
    assert changed.left_out == ["sub/deep/program"]
    assert (source / "file").read_text() == "changed"
    assert not (source / "file").is_symlink()


def hide_directory(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have walks find a directory that cannot be listed."""

    def walk_without(*arguments: Any, **keywords: Any) -> WalkResult:
        walked = walk(*arguments, **keywords)
        walked.entries = [entry for entry in walked.entries if len(entry.parts) == 1 or entry.parts[0] != name]
        walked.unreadable.append(((name,), PermissionError(13, "Permission denied")))
        return walked

    monkeypatch.setattr(workspace_copies, "walk", walk_without)


def test_unlisted_directories_of_a_branch_stay_in_the_parent(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = copy_workspace(source, target)
    (target / "file").unlink()
    hide_directory(monkeypatch, "sub")
    changed = bring_changes(target, source, copied)
    assert (source / "sub/deep/program").exists()
    assert not (source / "file").exists()
    assert (changed.removed, changed.left_out) == (["file"], ["sub"])


def test_uncopied_directories_stay_when_the_copy_is_put_back(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        hide_directory(patched, "sub")
        copied = copy_workspace(source, target)
    assert copied.describe_left_out() == "These files were not copied: sub."
    (source / "sub/new").touch()
    (source / "new").touch()
    assert put_back(target, source, copied).removed == ["new"]
    assert (source / "sub/new").exists()


def test_more_entries_than_the_bound_are_named_and_none_is_removed(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_copies, "_ENTRIES_MAX", 3)
    copied = copy_workspace(source, target)
    assert copied.describe_left_out() == "These files were not copied: what follows the first 3 entries."
    monkeypatch.undo()
    (source / "new").touch()
    assert put_back(target, source, copied).removed == []
    assert (source / "new").exists()


def test_a_copy_stays_in_its_directory_if_a_link_takes_the_place_of_its_path(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "b").mkdir(parents=True)
    (outside / "b/file").write_text("the owner's")
    directory = make_copy_directory(source, Path(".kernelexec/branches"), "b")
    directory.check()
    (source / ".kernelexec/branches").rename(source / ".kernelexec/moved")
    (source / ".kernelexec/branches").symlink_to(outside)
    copied = copy_workspace(source, directory.fd)
    (source / "file").write_text("changed")
    assert (source / ".kernelexec/moved/b/file").read_text() == "content"
    assert "file" in put_back(directory.fd, source, copied).states
    assert (source / "file").read_text() == "content"
    with pytest.raises(NotADirectoryError):
        directory.check()
    directory.remove()
    assert listed(outside) == ["b", "b/file"]


def test_another_directory_in_the_place_of_a_copy_is_noticed(source: Path) -> None:
    directory = make_copy_directory(source, Path(".kernelexec/branches"), "b")
    directory.path.rename(source / "moved")
    directory.path.mkdir()
    with pytest.raises(FileNotFoundError, match="another directory"):
        directory.check()
    directory.close()


def test_a_workspace_of_a_branch_is_not_copied_from_where_a_link_leads(source: Path, target: Path, tmp_path: Path) -> None:
    branch = source / ".kernelexec/branches/b"
    branch.mkdir(parents=True)
    branch.parent.rename(source / "moved")
    branch.parent.symlink_to(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(NotADirectoryError):
        copy_workspace(branch, target)
    with pytest.raises(NotADirectoryError):
        make_copy_directory(branch, Path(".kernelexec/branches"), "c")
    assert listed(tmp_path / "b") == []


def test_changes_beyond_the_bound_are_refused_before_any_is_copied(source: Path, target: Path) -> None:
    copied = copy_workspace(source, target)
    (target / "a").write_text("small")
    with (target / "holes").open("wb") as file:
        file.truncate(1 << 40)
    (target / "file").unlink()
    with pytest.raises(InvalidRequest, match=f"have {(1 << 40) + 5} bytes, and at most {2**30} are copied"):
        bring_changes(target, source, copied)
    assert (source / "file").exists()
    assert not (source / "a").exists()


def test_changes_that_are_not_copied_in_time_are_named(source: Path, target: Path) -> None:
    copied = copy_workspace(source, target)
    (target / "new").touch()
    assert bring_changes(target, source, copied, seconds=-1).left_out == ["new"]


def test_a_copy_that_a_kernel_has_changed_is_not_put_back(source: Path, target: Path) -> None:
    copied = copy_workspace(source, target)
    os.truncate(target / "file", 1 << 40)
    (source / "file").write_text("changed")
    (source / "sub/deep/program").write_text("changed")
    changed = put_back(target, source, copied)
    assert (changed.left_out, list(changed.states)) == (["file"], ["sub/deep/program"])
    assert (source / "file").read_text() == "changed"


def test_changed_files_without_a_copy_are_named(source: Path, target: Path) -> None:
    copied = copy_workspace(source, target)
    (target / "file").unlink()
    shutil.rmtree(target / "sub")
    (source / "file").write_text("changed")
    assert put_back(target, source, copied).describe_return() == ("These are as they are now: file.",)
    assert (source / "file").read_text() == "changed"


@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to("/")], ids=["a directory", "a link"])
def test_nothing_in_the_place_of_a_copy_is_put_back(source: Path, target: Path, put: Callable[[Path], None]) -> None:
    copied = copy_workspace(source, target)
    (target / "file").unlink()
    put(target / "file")
    (source / "file").unlink()
    assert put_back(target, source, copied).left_out == ["file"]
    assert not (source / "file").is_symlink()
    assert not (source / "file").exists()


def test_unseen_entries_of_a_workspace_or_a_copy_are_named(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = copy_workspace(source, target)
    (source / "sub/new").touch()
    with monkeypatch.context() as patched:
        hide_directory(patched, "sub")
        (note,) = put_back(target, source, copied).describe_return()
    assert note == "These are as they are now: sub, sub/deep, sub/deep/program."
    monkeypatch.setattr(workspace_copies, "_ENTRIES_MAX", 3)
    changed = put_back(target, source, copied)
    assert "sub/deep/program" in changed.left_out
    assert changed.describe_return()[-1].endswith(", what follows the first 3 entries.")


def test_new_directories_that_cannot_be_removed_are_named(source: Path, target: Path) -> None:
    copied = copy_workspace(source, target)
    (source / "new/.venv").mkdir(parents=True)
    assert put_back(target, source, copied).describe_return() == ("These are as they are now: new.",)


def test_unchanged_links_are_not_replaced(source: Path, target: Path) -> None:
    (source / "link").symlink_to("file")
    copied = copy_workspace(source, target)
    inode = (source / "link").lstat().st_ino
    assert put_back(target, source, copied).states == {}
    assert (source / "link").lstat().st_ino == inode


@pytest.mark.parametrize("rights", [0o500, 0o755, 0o777])
def test_directories_get_their_rights_back_once(source: Path, target: Path, rights: int) -> None:
    (source / "sub").chmod(rights)
    copied = copy_workspace(source, target)
    (source / "sub").chmod(0o700)
    (source / "sub/deep/program").unlink()
    assert list(put_back(target, source, copied).states) == ["sub", "sub/deep/program"]
    assert stat.S_IMODE((source / "sub").stat().st_mode) == rights
    assert put_back(target, source, copied).states == {}


def test_the_changed_rights_of_a_directory_come_with_a_branch(source: Path, target: Path) -> None:
    copied = copy_workspace(source, target)
    (target / "sub").chmod(0o770)
    assert list(bring_changes(target, source, copied).states) == ["sub"]
    assert stat.S_IMODE((source / "sub").stat().st_mode) == 0o770


def test_a_file_that_stays_may_be_replaced_meanwhile(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, unfinished = frozenset({"own.ipynb"}), ".own.ipynb.0123456789abcdef.tmp"
    copied = copy_workspace(source, target, ignore=names)
    (source / unfinished).touch()
    assert put_back(target, source, copied, ignore=names).removed == []
    assert bring_changes(source, target, copied, ignore=names).states == {}
    monkeypatch.setattr(workspace_copies, "COPIED_BYTES", 0)
    assert not copy_workspace(source, target, ignore=names).knows(unfinished) or not (target / unfinished).exists()
    assert (source / unfinished).exists()
