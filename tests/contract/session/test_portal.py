"""The way of a call into the executor's thread: its exceptions come back as they are, and no caller waits in vain."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest

from kernelexec import Closed, Executor, KernelStartFailed, Session
from kernelexec.blocking import Portal
from kernelexec.executor import AsyncExecutor

BOUND = 30
LIBRARY, OURS = ContextVar[str]("LIBRARY"), ContextVar[str]("OURS")


@pytest.fixture
def portal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Portal]:
    """One whose executor is open, and whose thread has a context of its own."""
    enter = AsyncExecutor.__aenter__

    async def entered(executor: AsyncExecutor) -> AsyncExecutor:
        LIBRARY.set("asyncio")
        return await enter(executor)

    monkeypatch.setattr(AsyncExecutor, "__aenter__", entered)
    portal = Portal(AsyncExecutor("local", workspace=tmp_path, config={"quiet": True}))
    portal.open()
    yield portal
    portal.close(failed=False)


@pytest.mark.parametrize("kind", [TimeoutError, concurrent.futures.CancelledError, asyncio.InvalidStateError, KeyError])
def test_what_a_call_raises_is_raised_as_itself(portal: Portal, kind: type[Exception]) -> None:
    async def fails() -> None:
        raise failure

    failure = kind("mine")
    with pytest.raises(kind) as caught:
        portal.call(fails)
    assert caught.value is failure
    assert caught.traceback[-1].name == "fails"


def test_a_call_that_is_cancelled_says_that_the_executor_is_closed(portal: Portal) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Closed):
        portal.call(cancelled)


def test_a_call_has_the_callers_context_but_for_what_is_the_threads_own(portal: Portal) -> None:
    async def seen() -> tuple[str, str]:
        return LIBRARY.get(), OURS.get()

    LIBRARY.set("another")
    OURS.set("ours")
    assert portal.call(seen) == ("asyncio", "ours")


def test_a_loop_that_breaks_down_answers_everybody(tmp_path: Path) -> None:
    async def sleeps() -> None:
        begun.set()
        await asyncio.sleep(BOUND)

    async def breaks() -> None:
        raise SystemExit(3)

    def waits() -> None:
        try:
            portal.call(sleeps)
        except Closed as exc:
            reported.append(str(exc))

    portal, begun, reported = (
        Portal(AsyncExecutor("local", workspace=tmp_path, config={"quiet": True})),
        threading.Event(),
        list[str](),
    )
    portal.open()
    waiter = threading.Thread(target=waits)
    waiter.start()
    assert begun.wait(BOUND)
    with pytest.raises(SystemExit):
        portal.call(breaks)
    waiter.join(BOUND)
    assert len(reported) == 1
    with pytest.raises(Closed):
        portal.call(sleeps)
    with pytest.raises(SystemExit):
        portal.close(failed=False)


@pytest.fixture
def signals() -> Iterator[None]:
    """Signals as a new process has them: event loops of clients in other tests may have taken them."""
    handler, wakeup = signal.signal(signal.SIGINT, signal.default_int_handler), signal.set_wakeup_fd(-1)
    yield
    signal.signal(signal.SIGINT, handler)
    signal.set_wakeup_fd(wakeup)


@pytest.fixture
def opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """One that does not open, and takes a while for it."""

    async def fails(_: AsyncExecutor) -> None:
        await asyncio.sleep(1)
        raise KernelStartFailed("no room")

    monkeypatch.setattr(AsyncExecutor, "__aenter__", fails)
    return Executor("local", workspace=tmp_path)


def test_a_caller_during_a_failed_opening_learns_why(opening: Executor) -> None:
    def call() -> None:
        try:
            opening.session()
        except (Closed, KernelStartFailed) as exc:
            reported.append(exc)

    reported: list[Exception] = []
    thread = threading.Timer(0.5, call)
    thread.start()
    with pytest.raises(KernelStartFailed, match="no room"):
        opening.__enter__()
    thread.join(BOUND)
    assert len(reported) == 1


def interrupted(after: float, call: Callable[[], object]) -> None:
    """A call in the main thread, into which Ctrl+C comes."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()


@pytest.mark.usefixtures("signals")
def test_an_interrupt_while_it_opens_in_vain_ends_that(opening: Executor) -> None:
    interrupted(0.5, opening.__enter__)


@pytest.mark.usefixtures("signals")
def test_an_interrupt_of_a_call_leaves_its_cell_and_the_executor_as_they_are(session: Session) -> None:
    begun = threading.Event()
    code = "import time; print(1, flush=True); time.sleep(2); x = 41"
    interrupted(1.0, lambda: session.execute(code, on_output=lambda _: begun.set()))
    assert begun.is_set()
    assert session.execute("x + 1").text == "42\n"


class Hit(Exception):
    """What a signal's handler raises."""


@pytest.mark.usefixtures("signals")
def test_interrupts_at_any_time_cost_no_later_call(portal: Portal) -> None:
    """They may come during the wait for an answer, for which the executor's thread must never have to wait."""

    async def nothing() -> int:
        return 1

    def handler(*_: object) -> None:
        if aimed.pop():
            aimed.append(False)
            raise Hit
        aimed.append(False)

    def storm() -> None:
        while not over.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.0003)

    over, aimed, hits, end = threading.Event(), [False], 0, time.monotonic() + 2
    previous = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=storm)
    thread.start()
    try:
        while time.monotonic() < end:
            try:
                aimed[0] = True
                assert portal.call(nothing) == 1
                aimed[0] = False
            except Hit:
                hits += 1
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, previous)
    assert hits > 10
    assert portal.call(nothing) == 1
