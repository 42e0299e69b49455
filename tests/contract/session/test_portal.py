"""The way of a call into the executor's thread: its exceptions come back as they are, and no caller waits in vain."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from kernelexec import Closed, Executor, InvalidRequest, KernelexecError, KernelStartFailed, Session
from kernelexec.executor.blocking import Portal
from kernelexec.executor.executor import AsyncExecutor
from tests.support.pace import BOUND

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()
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


def test_a_thread_whose_start_was_interrupted_enters_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        raise KeyboardInterrupt

    entered = False

    @asynccontextmanager
    async def target() -> AsyncIterator[None]:
        nonlocal entered
        entered = True
        yield

    portal = Portal(target())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            portal.open()
    [thread] = started
    thread.start()
    thread.join(BOUND)
    assert not thread.is_alive()
    assert not entered


@pytest.mark.parametrize("kind", [TimeoutError, concurrent.futures.CancelledError, asyncio.InvalidStateError, KeyError])
def test_errors_of_a_call_are_raised_unchanged(portal: Portal, kind: type[Exception]) -> None:
    async def fails() -> None:
        raise failure

    failure = kind("mine")
    with pytest.raises(kind) as caught:
        portal.call(fails)
    assert caught.value is failure
    assert caught.traceback[-1].name == "fails"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_exits_are_raised_in_the_caller_and_end_no_loop(portal: Portal, kind: type[BaseException]) -> None:
    async def fails() -> None:
        raise failure

    async def succeeds() -> int:
        return 1

    failure = kind("mine")
    with pytest.raises(kind) as caught:
        portal.call(fails)
    assert caught.value is failure
    assert portal.call(succeeds) == 1


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


def test_an_interrupt_before_the_loop_gets_the_call_waits_for_no_call(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_made() -> None:
        raise AssertionError

    def interrupt() -> None:
        raise KeyboardInterrupt

    def make_call() -> None:
        with pytest.raises(KeyboardInterrupt):
            portal.call_or_cancel(never_made)
        ended.set()

    ended = threading.Event()
    monkeypatch.setattr(portal, "_caller_context", interrupt)
    caller = threading.Thread(target=make_call, daemon=True)
    caller.start()
    caller.join(BOUND)
    assert ended.is_set()
    assert not portal._pending


def test_a_second_opening_is_refused_and_leaves_the_portal_open(portal: Portal) -> None:
    async def succeeds() -> int:
        return 1

    with pytest.raises(InvalidRequest, match="is or was open"):
        portal.open()
    assert portal.call(succeeds) == 1


def test_a_loop_that_breaks_down_answers_everybody(tmp_path: Path) -> None:
    async def sleeps() -> None:
        begun.set()
        await asyncio.sleep(BOUND)

    async def breaks() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(BOUND)

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
    with pytest.raises(Closed):
        portal.call(breaks)
    waiter.join(BOUND)
    assert len(reported) == 1
    with pytest.raises(Closed):
        portal.call(sleeps)
    with pytest.raises(SystemExit):
        portal.close(failed=False)


def test_a_callback_that_does_not_return_delays_the_end_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelexec.executor.blocking.portal._STALL_SECONDS", 1.0)
    begun, end = threading.Event(), threading.Event()
    executor = Executor("local", workspace=tmp_path).open()
    session = executor.session("a")

    def block(_: object) -> None:
        begun.set()
        end.wait(BOUND)

    running = threading.Thread(target=partial(session.execute, "print(1)", on_output=block))
    running.start()
    assert begun.wait(BOUND)
    with pytest.raises(KernelexecError, match=r"a hook or callback has kept its thread for 1 s, in threading.py, line \d+"):
        executor.close()
    end.set()
    running.join(BOUND)
    assert not running.is_alive()


@pytest.fixture
def signals() -> Iterator[None]:
    """Signals as a new process has them: event loops of clients in other tests may have taken them."""
    handler, wakeup = signal.signal(signal.SIGINT, signal.default_int_handler), signal.set_wakeup_fd(-1)
    yield
    signal.signal(signal.SIGINT, handler)
    signal.set_wakeup_fd(wakeup)


@dataclass
class Opening:
    """An executor that does not open, but fails to when it is told to."""

    executor: Executor
    begun: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    actual = Opening(Executor("local", workspace=tmp_path))

    async def fails(_: AsyncExecutor) -> None:
        actual.begun.set()
        while not actual.end.is_set():  # noqa: ASYNC110 - it may be cancelled
            await asyncio.sleep(0.01)
        raise KernelStartFailed("no room")

    monkeypatch.setattr(AsyncExecutor, "__aenter__", fails)
    yield actual
    actual.end.set()


def test_a_caller_during_a_failed_opening_learns_why(opening: Opening) -> None:
    def call() -> None:
        assert opening.begun.wait(BOUND)
        threading.Timer(0.5, opening.end.set).start()  # the call will wait by then, or it comes too late, and learns the same
        try:
            opening.executor.session()
        except (Closed, KernelStartFailed) as exc:
            reported.append(exc)

    reported: list[Exception] = []
    thread = threading.Thread(target=call)
    thread.start()
    with pytest.raises(KernelStartFailed, match="no room"):
        opening.executor.__enter__()
    thread.join(BOUND)
    assert len(reported) == 1


def interrupted(begun: Callable[[], object], call: Callable[[], object], end: Callable[[], object] = lambda: None) -> None:
    """A call in the main thread, into which Ctrl+C comes once it has begun, and which may end then."""

    def interrupt() -> None:
        begun()
        os.kill(os.getpid(), signal.SIGINT)
        end()

    def begin() -> None:
        thread.start()
        call()

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        begin()
    thread.join()


@pytest.mark.usefixtures("signals")
def test_an_interrupt_while_it_opens_in_vain_ends_that(opening: Opening) -> None:
    interrupted(partial(opening.begun.wait, BOUND), opening.executor.__enter__, opening.end.set)


WAITS = "import os, time\nprint(1, flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 41"


@pytest.mark.usefixtures("signals")
def test_an_interrupt_of_a_call_leaves_its_cell_and_the_executor_as_they_are(session: Session) -> None:
    begun = threading.Event()
    interrupted(partial(begun.wait, BOUND), lambda: session.execute(WAITS, on_output=lambda _: begun.set()))
    assert begun.is_set()
    (session.workspace / "go").touch()
    assert session.execute("x + 1").text == "42"


@pytest.mark.usefixtures("signals")
def test_an_interrupt_of_a_stream_is_raised_and_leaves_its_cell(session: Session) -> None:
    outputs = session.stream(WAITS)
    next(outputs)
    interrupted(partial(time.sleep, 0.5), lambda: next(outputs))  # nothing tells that it waits
    (session.workspace / "go").touch()
    assert session.execute("x + 1").text == "42"


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

    over, aimed, hits, end = threading.Event(), [False], 0, time.monotonic() + 1
    previous = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=storm)
    thread.start()
    try:
        while time.monotonic() < end or hits <= 10:
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
    assert portal.call(nothing) == 1
