"""The open sessions of one executor: each is known by a name that no other one has."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor
from kernelexec.config import Config
from kernelexec.errors import InvalidWorkDir
from kernelexec.executor import registry
from kernelexec.executor.directories import ExecutorDirectories
from kernelexec.executor.resources import SessionResources, adopted_resources
from kernelexec.provisioning import Handover
from kernelexec.provisioning.runtime.discovery import OrphanedSessionFile
from kernelexec.session.cells.takeover import OrphanedSession
from tests.support.pace import until

BOUND = 60


def test_a_session_whose_name_was_taken_while_it_was_taken_over_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, opened = threading.Event(), threading.Event()
    left = OrphanedSessionFile("a", tmp_path / "ws" / "a", tmp_path / "left", None, Handover(1, "token", {}, {}))
    left.directory.mkdir()
    given_up: list[OrphanedSessionFile] = []
    actual: list[SessionResources] = []

    async def inherit(_self: ExecutorDirectories) -> list[tuple[Path, OrphanedSessionFile]]:
        return [(tmp_path, left)]

    async def give_up(_self: ExecutorDirectories, what: OrphanedSessionFile) -> None:
        given_up.append(what)

    def late(what: OrphanedSessionFile, root: Path, config: Config, *more: Any) -> tuple[SessionResources, OrphanedSession]:
        asked.set()
        assert opened.wait(BOUND)
        belongings, was = adopted_resources(what, root, config, *more)
        actual.append(belongings)
        return belongings, was

    monkeypatch.setattr(ExecutorDirectories, "adopt_orphans", inherit)
    monkeypatch.setattr(ExecutorDirectories, "discard_session", give_up)
    monkeypatch.setattr(registry, "adopted_resources", late)

    async def main() -> None:
        async with asyncio.timeout(BOUND):
            executor = AsyncExecutor("local", workspace=tmp_path / "ws")
            entering = asyncio.create_task(executor.__aenter__())
            assert await asyncio.to_thread(asked.wait, BOUND)
            session = await executor.session("a")
            opened.set()
            await entering
            assert await executor.session("a") is session
            assert (await session.execute("6 * 7")).text == "42"
            await executor.__aexit__(None, None, None)
            assert session.scope.stopped.is_set()

    with caplog.at_level(logging.ERROR, "kernelexec"):
        asyncio.run(main())
    [reported] = [record for record in caplog.records if record.message == "kernelexec.session_not_adopted"]
    assert reported.__dict__["reason"].startswith("A session 'a' is open already: ")
    assert given_up == [left]
    assert actual[0].journal is not None
    assert actual[0].journal._fd is None


def test_a_cancelled_caller_leaves_no_session_open_that_a_thread_took_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, opened = threading.Event(), threading.Event()
    orphan = OrphanedSessionFile("a", tmp_path / "ws" / "a", tmp_path / "left", None, Handover(1, "token", {}, {}))
    for path in (orphan.directory, orphan.workspace):
        path.mkdir(parents=True)
    adopted: list[SessionResources] = []

    async def inherit(_self: ExecutorDirectories) -> list[tuple[Path, OrphanedSessionFile]]:
        return [(tmp_path, orphan)]

    def adopt_late(*options: Any) -> tuple[SessionResources, OrphanedSession]:
        asked.set()
        assert opened.wait(BOUND)
        resources, previous = adopted_resources(*options)
        adopted.append(resources)
        return resources, previous

    monkeypatch.setattr(ExecutorDirectories, "adopt_orphans", inherit)
    monkeypatch.setattr(registry, "adopted_resources", adopt_late)

    async def main() -> None:
        entering = asyncio.create_task(AsyncExecutor("local", workspace=tmp_path / "ws").open())
        assert await asyncio.to_thread(asked.wait, BOUND)
        entering.cancel()
        await asyncio.wait([entering], timeout=0.1)  # a call that does not wait for its thread ends here
        opened.set()
        with pytest.raises(asyncio.CancelledError):
            await entering

    asyncio.run(main())
    until(lambda: adopted)
    assert adopted[0].journal is not None
    assert adopted[0].journal._fd is None


def test_an_error_keeps_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def main() -> None:
        async with AsyncExecutor("local", workspace=tmp_path / "file" / "ws") as executor:
            await executor.session("a")

    with pytest.raises(InvalidWorkDir) as raised:
        asyncio.run(main())
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("is_discarded", [True, False], ids=["discarded", "not discarded"])
def test_an_orphan_whose_kernel_wrote_nonsense_ends_no_other_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_discarded: bool
) -> None:
    handovers = [Handover(1, "token", {}, {}), Handover(1, "token", {}, {"made": 5})]
    workspace = tmp_path / "ws" / "\ud800"
    orphans = [OrphanedSessionFile(f"a{n}", workspace, tmp_path, None, each) for n, each in enumerate(handovers)]
    discarded: list[OrphanedSessionFile] = []

    async def inherit(_self: ExecutorDirectories) -> list[tuple[Path, OrphanedSessionFile]]:
        return [(tmp_path, orphan) for orphan in orphans]

    async def discard(_self: ExecutorDirectories, orphan: OrphanedSessionFile) -> None:
        discarded.append(orphan)
        if not is_discarded:
            raise ValueError

    monkeypatch.setattr(ExecutorDirectories, "adopt_orphans", inherit)
    monkeypatch.setattr(ExecutorDirectories, "discard_session", discard)

    async def main() -> None:
        async with asyncio.timeout(BOUND), AsyncExecutor("local", workspace=tmp_path / "ws") as executor:
            assert (await (await executor.session("a0")).execute("6 * 7")).text == "42"

    with caplog.at_level(logging.ERROR, "kernelexec"):
        asyncio.run(main())
    reported = [record.__dict__["session"] for record in caplog.records if record.message == "kernelexec.session_not_adopted"]
    assert (reported, discarded) == (["a0", "a1"], orphans)
    left = [record for record in caplog.records if record.message == "kernelexec.session_not_discarded"]
    assert len(left) == (0 if is_discarded else 2)
