"""Directories that a kernel wrote in can be removed, whatever it made of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kernelexec.workspace import rmtree as trees
from kernelexec.workspace.rmtree import clear, remove_tree
from kernelexec.workspace.safe_files import DIRECTORY


def test_links_go_and_what_they_point_to_stays(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "inner").mkdir(parents=True)
    (outside / "precious").mkdir(parents=True)
    for directory in (tree, tree / "inner"):
        (directory / "link").symlink_to(outside)
        (directory / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "inner" / "fifo")
    remove_tree(tree)
    assert list(tmp_path.iterdir()) == [outside]
    assert (outside / "precious").is_dir()


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("/")], ids=["a file", "a link"])
def test_paths_other_than_directories_are_left(tmp_path: Path, make: object) -> None:
    path = tmp_path / "path"
    assert callable(make)
    make(path)
    remove_tree(path)
    remove_tree(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == [path]


def test_clearing_keeps_a_name_and_obeys_a_stop(tmp_path: Path) -> None:
    for name in ("keep", "a", "b"):
        (tmp_path / name).touch()
    fd = os.open(tmp_path, DIRECTORY)
    stop = threading.Event()
    stop.set()
    try:
        assert not clear(fd, keep="keep", stop=stop)
        assert len(list(tmp_path.iterdir())) == 3
        assert clear(fd, keep="keep")
    finally:
        os.close(fd)
    assert list(tmp_path.iterdir()) == [tmp_path / "keep"]


def test_a_directory_without_rights_is_removed_also_where_none_is_held_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "NAMED", os.O_RDONLY)
    (tmp_path / "top" / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "top" / "inner").chmod(0o400)
    trees.remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_an_entry_that_cannot_be_removed_stays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, names_in = trees._unlink, trees.names_in
    monkeypatch.setattr(trees, "_unlink", lambda name, parent: name != "a stuck" and unlink(name, parent))
    monkeypatch.setattr(trees, "names_in", lambda directory, most=None: sorted(names_in(directory, most)))
    (tmp_path / "top/d/inner/deep").mkdir(parents=True)
    for name in ("a stuck", "b", "inner/file"):
        (tmp_path / "top/d" / name).touch()
    (tmp_path / "top/e").touch()
    remove_tree(tmp_path / "top")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "top", tmp_path / "top/d", tmp_path / "top/d/a stuck"]


def test_a_directory_that_goes_on_growing_holds_a_removal_no_longer_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, removed = trees._open_ours, []

    def open_and_grow(name: str, parent: int) -> int:
        fd = plain(name, parent)
        removed.append(name)
        if len(removed) < 1000:
            os.mkdir("more", dir_fd=fd)
        return fd

    (tmp_path / "top").mkdir()
    monkeypatch.setattr(trees, "_open_ours", open_and_grow)
    fd = os.open(tmp_path, DIRECTORY)
    try:
        assert not clear(fd, most=20)
        assert len(removed) < 100
        assert not clear(fd, seconds=0)
    finally:
        os.close(fd)
