"""What dead owners left, where more than one had a session of the same name."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernelexec.cells import CodeCell
from kernelexec.config import Config, load
from kernelexec.events import CellStarted
from kernelexec.executor.directories import ExecutorDirectories
from kernelexec.executor.resources import adopted_resources
from kernelexec.provisioning import Handover, new_root
from kernelexec.provisioning.container import containers
from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile, list_orphaned_sessions, write_session_file
from kernelexec.provisioning.runtime.owned_directory import OwnedDirectory
from kernelexec.records.journal import Journal, journal_path
from tests.support.pace import BOUND

HANDOVER = Handover(1, "token", {}, {})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load("container", workspace=tmp_path)


def left_with(config: Config, root: Path, journal: Path) -> OrphanedSessionFile:
    """A session ``a`` as its owner's private directory tells of it."""
    workspace, directory = config.absolute_workspace / "a", root / "a"
    for path in (workspace, directory):
        path.mkdir(parents=True, exist_ok=True)
    write_session_file(directory, "a", workspace, None, journal)
    HANDOVER.write(directory)
    [left] = list_orphaned_sessions(root)
    return left


def test_the_cell_that_runs_in_a_kernel_is_known_by_the_journal_of_its_own_session(tmp_path: Path) -> None:
    config = load("local", workspace=tmp_path)
    with ExitStack() as closing:
        name = journal_path(tmp_path, "a")
        living, dead = (Journal(name, limit_bytes=2**20) for _ in range(2))
        closing.callback(living.close)
        for journal, execution in ((living, "other"), (dead, "own")):
            journal(CellStarted("a", execution, CodeCell("1"), 1))
        dead.close()
        actual, was = adopted_resources(left_with(config, tmp_path / "root", dead.path), tmp_path / "root", config)
        actual.discard()
        assert was.running_cell is not None
        assert was.running_cell.execution_id == "own"


@pytest.mark.parametrize("first", [True, False])
def test_of_sessions_of_one_name_the_one_that_kept_its_journal_comes_first(
    config: Config, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    named = journal_path(config.workspace, "a")
    journals = [named, named.with_name("a@2.jsonl")][:: 1 if first else -1]
    roots = [OwnedDirectory.claim(new_root()) for _ in journals]
    lefts = [left_with(config, root.path, journal) for root, journal in zip(roots, journals, strict=True)]
    there = [containers.OrphanedRoot(root, (left,)) for root, left in zip(roots, lefts, strict=True)]
    monkeypatch.setattr(containers, "adopt_orphans", lambda _config: there)
    estates = ExecutorDirectories(config)
    try:
        actual = asyncio.run(estates.adopt_orphans())
        assert [left.journal for _, left in actual] == [named, named.with_name("a@2.jsonl")]
    finally:
        estates.remove()


def test_a_cancelled_caller_keeps_no_directory_that_a_thread_took_over(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    root = OwnedDirectory.claim(new_root())
    asked, opened = threading.Event(), threading.Event()

    def take_over(_config: Config) -> list[containers.OrphanedRoot]:
        asked.set()
        assert opened.wait(BOUND)
        return [containers.OrphanedRoot(root, ())]

    async def main() -> None:
        adopting = asyncio.create_task(directories.adopt_orphans())
        assert await asyncio.to_thread(asked.wait, BOUND)
        adopting.cancel()
        await asyncio.wait([adopting], timeout=0.1)  # a call that does not wait for its thread ends here
        opened.set()
        with pytest.raises(asyncio.CancelledError):
            await adopting

    monkeypatch.setattr(containers, "adopt_orphans", take_over)
    directories = ExecutorDirectories(config)
    try:
        asyncio.run(main())
        directories.remove()
        assert not root.path.exists()
    finally:
        root.remove()


@pytest.mark.parametrize("name", ["workspace", "notebook", "journal"])
def test_a_session_file_with_a_path_that_is_none_is_no_session(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "root" / "a"
    directory.mkdir(parents=True)
    write_session_file(directory, "a", tmp_path)
    Handover(1, "token", {}, {}).write(directory)
    assert len(list_orphaned_sessions(directory.parent)) == 1
    content = json.loads((directory / "session.json").read_text())
    (directory / "session.json").write_text(json.dumps({**content, name: "/\ud800"}))
    assert list_orphaned_sessions(directory.parent) == []


def test_a_handover_of_a_container_without_a_name_is_none(tmp_path: Path) -> None:
    Handover(1, "token", {}, {"container": ["a"]}).write(tmp_path)
    assert Handover.read(tmp_path) is None
