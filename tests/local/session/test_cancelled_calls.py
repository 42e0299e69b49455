"""Calls that an event loop cancels, again and again and at its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, AsyncSession, Executor, Session, Snapshot
from kernelexec.adapters.shared.commands import await_result
from kernelexec.executor.resources import SessionResources
from kernelexec.session.features.saved_state import checkpoint_files
from tests.support.night import at_night, named_cases
from tests.support.pace import BOUND


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor(isolation="local", workspace=tmp_path_factory.mktemp("workspace")) as executor:
        session = executor.session()
        session.execute("import time; x = 1")
        yield session


def _sleep(session: Session) -> asyncio.Task[object]:
    call = await_result(session, lambda target: target.execute("time.sleep(600)", timeout=900))
    return asyncio.create_task(call)


@pytest.mark.parametrize("begun", [0.0, *at_night(0.0005), 0.001, *at_night(0.002), 0.01, *at_night(0.2)])
@pytest.mark.parametrize("again", [0, 1, 3])
def test_a_call_that_is_cancelled_repeatedly_still_interrupts_its_cell(session: Session, begun: float, again: int) -> None:
    async def cancel() -> None:
        running = _sleep(session)
        await asyncio.sleep(begun)
        for _ in range(1 + again):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    assert session.execute("x", wait=BOUND).text.strip() == "1"


@pytest.mark.parametrize("begun", [0.0, 0.0005, 0.002, 0.01, 0.2])
def test_an_event_loop_that_ends_leaves_no_running_cell(session: Session, begun: float) -> None:
    async def leave() -> None:
        _sleep(session)
        await asyncio.sleep(begun)

    asyncio.run(leave())
    assert session.execute("x", wait=BOUND).text.strip() == "1"


@pytest.mark.parametrize("begun", [0.0005, *at_night(0.001), 0.002, *at_night(0.01), 0.05])
def test_after_a_cancelled_restart_the_next_cell_runs_in_the_new_kernel(tmp_path: Path, begun: float) -> None:
    async def restart_and_cancel() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session()
            await session.execute("x = 1")
            restarting = asyncio.create_task(session.restart())
            await asyncio.sleep(begun)
            restarting.cancel()
            result = await session.execute("'x' in globals()", timeout=BOUND)
            assert (result.status, result.text, result.state, result.cause) == ("ok", "False", "lost", "request")
            assert result.lost_names == ("x",)
            assert (await session.execute("1", timeout=BOUND)).state == "kept"

    asyncio.run(restart_and_cancel())


def _list_open_pipes(session: str) -> list[str]:
    """Return the paths of a session's pipes that this process has open."""
    paths = list[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            paths.append(str(descriptor.readlink()))
    return [path for path in paths if f"/{session}/1/" in path]


def test_a_session_whose_opening_is_cancelled_repeatedly_leaves_no_open_pipe(tmp_path: Path) -> None:
    async def open_and_cancel() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            await executor.session("first")
            for again in range(1, 7):
                name = f"n{again}"
                opening = asyncio.create_task(executor.session(name))
                while not _list_open_pipes(name) and not opening.done():  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0.0005)
                for _ in range(1 + again):
                    opening.cancel()
                    await asyncio.sleep(0)
                await asyncio.wait([opening])
                assert opening.cancelled()
                assert _list_open_pipes(name) == []
            assert executor.sessions() == ("first",)

    asyncio.run(open_and_cancel())


#: Calls that put files into the workspace for a moment.
WITH_FILES: dict[str, Callable[[AsyncSession, Any], Awaitable[object]]] = {
    "put": lambda session, _: session.put("y", list(range(100_000))),
    "get": lambda session, _: session.get("x"),
    "inputs": lambda session, _: session.execute("y", inputs={"y": list(range(100_000))}),
    "snapshot": lambda session, _: session.snapshot(["x"]),
    "a restore of another session's snapshot": lambda session, snapshot: session.restore(snapshot),
}


@pytest.mark.parametrize("call", named_cases(WITH_FILES, {"put", "get", "snapshot"}))
def test_a_cancelled_call_leaves_no_file(tmp_path: Path, call: Callable[[AsyncSession, Any], Awaitable[object]]) -> None:
    async def cancel() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session, other = await executor.session("a"), await executor.session("b")
            for each in (session, other):
                await each.execute("x = list(range(100_000))")
            snapshot = await other.snapshot()
            snapshots = set[str]()
            for delay in (0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08):
                calling = asyncio.ensure_future(call(session, snapshot))
                await asyncio.sleep(delay)
                for _ in range(2):
                    calling.cancel()
                    await asyncio.sleep(0)
                await asyncio.wait([calling])
                if not calling.cancelled() and isinstance(result := calling.result(), Snapshot):
                    snapshots.add(result.snapshot_id)
            assert (await session.execute("len(x)")).text == "100000"
            private = session.workspace / ".kernelexec"
            assert {path.name for path in private.rglob("*") if path.parent.name in ("values", "snapshots")} == snapshots

    asyncio.run(cancel())


#: Calls for which a thread works, and the function that it is in when they are cancelled.
WITH_THREADS: dict[str, tuple[object, str, Callable[[AsyncSession], Awaitable[object]]]] = {
    "files of a branch": (checkpoint_files, "copy_workspace", lambda session: session.branch("t")),
    "resources of a branch": (SessionResources, "branch", lambda session: session.branch("t")),
    "files for a replay": (checkpoint_files, "copy_workspace", lambda session: session.branch("t", kernel="replay")),
    "files of a checkpoint": (checkpoint_files, "copy_workspace", lambda session: session.checkpoint(files=True)),
}


@pytest.mark.parametrize("case", WITH_THREADS)
def test_a_call_that_is_cancelled_while_a_thread_works_for_it_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    owner, name, call = WITH_THREADS[case]
    work, has_begun, goes_on = getattr(owner, name), threading.Event(), threading.Event()

    def work_later(*arguments: Any, **keywords: Any) -> Any:
        has_begun.set()
        assert goes_on.wait(BOUND)
        return work(*arguments, **keywords)

    def list_open() -> list[str]:
        paths = list[str]()
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                paths.append(str(descriptor.readlink()))
        return sorted(path for path in paths if path.startswith(str(tmp_path)))

    async def cancel() -> None:
        async with AsyncExecutor("local", workspace=tmp_path, config={"checkpoints": "named"}) as executor:
            session = await executor.session("a")
            await session.execute("x = 1")
            before = list_open()
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, work_later)
                calling = asyncio.ensure_future(call(session))
                assert await asyncio.to_thread(has_begun.wait, BOUND)
                for _ in range(2):
                    calling.cancel()
                    await asyncio.sleep(0)
                await asyncio.wait([calling], timeout=0.2)  # a call that does not wait for the thread has ended then
                goes_on.set()
                await asyncio.wait([calling])
            assert calling.cancelled()
            assert list_open() == before
            copies = [path for kind in ("branches", "checkpoints") for path in session.workspace.glob(f".kernelexec/{kind}/*")]
            assert copies == []
            later = await executor.session("t")
            assert later.journal is not None
            assert later.journal.name == "t.jsonl"

    asyncio.run(cancel())
