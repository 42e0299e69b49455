"""One request's end: which halves came, in which order, and how long the other half was waited for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from kernelexec.config import OutputLimits
from kernelexec.kernel import execution as module
from kernelexec.kernel.execution import End, Execution
from kernelexec.outputs import Collector
from kernelexec.results import Stream

PATIENCE = 8.0
REPLY = {"status": "ok", "execution_count": 1}


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock moves only by the test."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Case:
    """An execution, and the means to let time pass for it."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.collector, self.late = Collector(OutputLimits()), Collector(OutputLimits())
        self.heard_at = 0.0
        self.execution = Execution("m", self.collector, self.late, lambda: self.heard_at)

    def run(self, *steps: Callable[[Case], None]) -> None:
        async def take() -> None:
            for step in steps:
                step(self)

        self.runner.run(take())

    def passes(self, seconds: float) -> None:
        async def turn() -> None:
            for _ in range(3):
                await asyncio.sleep(0)

        loop = self.runner.get_loop()
        assert isinstance(loop, ManualLoop)
        loop.now += seconds
        self.runner.run(turn())

    def end(self) -> End | None:
        assert self.execution.ended.is_set() == (self.execution.end is not None)
        return self.execution.end


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setattr(module, "HALF_END_PATIENCE", PATIENCE)
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        yield Case(runner)


def idle(case: Case) -> None:
    case.execution.on_idle()


def reply(case: Case) -> None:
    case.execution.on_reply(REPLY, {"of": "this one"})


def another_reply(case: Case) -> None:
    case.execution.on_reply({"status": "error"}, {"of": "another"})


def noise(case: Case) -> None:
    case.heard_at = case.runner.get_loop().time()


def output(case: Case) -> None:
    case.execution.on_output("stream", {"name": "stdout", "text": "x"}, 0)
    noise(case)


def finish(end: End) -> Callable[[Case], None]:
    return lambda case: case.execution.finish(end)


ONE_HALF = pytest.mark.parametrize("half", [idle, reply])
BOTH_ORDERS = pytest.mark.parametrize(("first", "second"), [(idle, reply), (reply, idle)])
Step = Callable[[Case], None]


def test_nothing_ends_without_either_half(case: Case) -> None:
    case.run(output)
    case.passes(PATIENCE * 1000)
    assert case.end() is None


@ONE_HALF
def test_one_half_ends_as_incomplete_after_the_patience(case: Case, half: Step) -> None:
    case.run(half)
    case.passes(PATIENCE - 1)
    assert case.end() is None
    case.passes(1)
    assert case.end() == "incomplete"


@BOTH_ORDERS
def test_both_halves_end_as_complete_at_once(case: Case, first: Step, second: Step) -> None:
    case.run(first)
    assert case.end() is None
    case.run(second)
    assert case.end() == "complete"
    assert (case.execution.reply, case.execution.reply_metadata) == (REPLY, {"of": "this one"})


@BOTH_ORDERS
def test_the_other_half_within_the_patience_ends_as_complete(case: Case, first: Step, second: Step) -> None:
    case.run(first)
    case.passes(PATIENCE - 1)
    case.run(output, second)
    case.passes(PATIENCE * 2)
    assert case.end() == "complete"


@BOTH_ORDERS
def test_the_other_half_after_the_patience_changes_no_end(case: Case, first: Step, second: Step) -> None:
    case.run(first)
    case.passes(PATIENCE)
    case.run(second)
    assert case.end() == "incomplete"


@ONE_HALF
@pytest.mark.parametrize("heard", [output, noise])
def test_any_message_restarts_the_patience(case: Case, half: Step, heard: Step) -> None:
    case.run(half)
    for _ in range(50):
        case.passes(PATIENCE - 1)
        case.run(heard)
    assert case.end() is None
    case.passes(PATIENCE - 1)
    assert case.end() is None
    case.passes(1)
    assert case.end() == "incomplete"


@ONE_HALF
def test_the_same_half_again_does_not_keep_the_patience_alive(case: Case, half: Step) -> None:
    case.run(half)
    case.passes(PATIENCE - 1)
    case.run(half)
    case.passes(1)
    assert case.end() == "incomplete"


@ONE_HALF
def test_time_before_the_first_half_is_not_counted(case: Case, half: Step) -> None:
    case.run(output)
    case.passes(PATIENCE * 10)
    case.run(half)
    case.passes(PATIENCE - 1)
    assert case.end() is None


def test_output_before_the_end_is_the_cells_and_after_it_is_late(case: Case) -> None:
    case.run(output, idle, output, reply)
    assert case.collector.outputs() == (Stream("stdout", "xx"),)
    assert case.late.outputs() == ()
    case.run(output)
    assert case.collector.outputs() == (Stream("stdout", "xx"),)
    assert case.late.outputs() == (Stream("stdout", "x"),)


def test_dropped_bytes_count_where_the_output_goes(case: Case) -> None:
    case.run(lambda case: case.execution.on_output("stream", {}, 5), idle, reply)
    case.run(lambda case: case.execution.on_output("stream", {}, 7))
    assert (case.collector.dropped_bytes, case.late.dropped_bytes) == (5, 7)


@pytest.mark.parametrize("end", ["complete", "incomplete", "died", "disconnected"])
def test_the_first_end_counts(case: Case, end: End) -> None:
    case.run(finish(end), finish("died"), finish("disconnected"), idle, reply)
    case.passes(PATIENCE * 2)
    assert case.end() == end


@ONE_HALF
def test_an_end_in_between_ends_the_patience(case: Case, half: Step) -> None:
    case.run(half, finish("died"))
    case.passes(PATIENCE * 2)
    assert case.end() == "died"


@ONE_HALF
def test_a_half_after_the_end_starts_no_patience(case: Case, half: Step) -> None:
    case.run(finish("died"), half)
    assert case.execution._patience is None


def test_the_last_reply_before_the_end_counts(case: Case) -> None:
    case.run(another_reply, reply)
    assert case.end() is None
    case.run(idle)
    assert (case.end(), case.execution.reply, case.execution.reply_metadata) == ("complete", REPLY, {"of": "this one"})


@pytest.mark.parametrize("end", ["complete", "incomplete", "died", "disconnected"])
def test_a_reply_after_the_end_is_ignored(case: Case, end: End) -> None:
    case.run(reply, finish(end), another_reply)
    assert (case.end(), case.execution.reply, case.execution.reply_metadata) == (end, REPLY, {"of": "this one"})


def test_another_reply_does_not_keep_the_patience_alive(case: Case) -> None:
    case.run(reply)
    case.passes(PATIENCE - 1)
    case.run(another_reply)
    case.passes(1)
    assert case.end() == "incomplete"


def test_an_empty_reply_is_a_reply(case: Case) -> None:
    case.run(lambda case: case.execution.on_reply({}, {}), idle, another_reply)
    assert (case.end(), case.execution.reply) == ("complete", {})


@pytest.mark.parametrize("step", [finish("died"), lambda case: case.execution.ask_interrupt()])
def test_an_end_and_a_request_to_interrupt_wake_the_watcher(case: Case, step: Step) -> None:
    async def watch() -> None:
        waiting = [asyncio.ensure_future(case.execution.wait_for_turn(60)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiting)
        step(case)
        await asyncio.gather(*waiting)
        await case.execution.wait_for_turn(60)

    case.runner.run(watch())


def test_a_cell_that_goes_on_is_waited_for_so_long(case: Case) -> None:
    async def watch() -> bool:
        waiting = asyncio.ensure_future(case.execution.wait_for_turn(60))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualLoop)
        for _ in range(6):
            assert not waiting.done()
            loop.now += 10
            for _ in range(3):
                await asyncio.sleep(0)
        return waiting.done()

    assert case.runner.run(watch())
    assert (case.end(), case.execution.is_interrupt_requested) == (None, False)


def test_a_request_to_interrupt_is_no_end(case: Case) -> None:
    case.run(lambda case: case.execution.ask_interrupt(), output)
    assert (case.end(), case.execution.is_interrupt_requested) == (None, True)
    assert case.collector.outputs() == (Stream("stdout", "x"),)


def test_a_wait_that_was_given_up_is_taken_up_again(case: Case) -> None:
    async def wait() -> None:
        given_up = asyncio.ensure_future(case.execution.wait_for_turn(60))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        again = asyncio.ensure_future(case.execution.wait_for_turn(60))
        idle(case)
        reply(case)
        await again

    case.runner.run(wait())
    assert case.end() == "complete"


def test_output_of_a_lingering_execution_is_late_only_once_settled(case: Case) -> None:
    case.execution.keeps_late_output = True
    case.run(output, idle, reply, output)
    assert case.end() == "complete"
    assert (case.collector.outputs(), case.late.outputs()) == ((Stream("stdout", "xx"),), ())
    case.execution.settle()
    case.run(output)
    assert (case.collector.outputs(), case.late.outputs()) == ((Stream("stdout", "xx"),), (Stream("stdout", "x"),))


def test_settling_before_the_end_ends_nothing(case: Case) -> None:
    case.execution.settle()
    case.run(output)
    assert (case.end(), case.collector.outputs()) == (None, (Stream("stdout", "x"),))


@pytest.mark.parametrize("lingers", [False, True])
def test_timely_output_is_referenced_by_its_cell_only(case: Case, *, lingers: bool) -> None:
    case.execution.keeps_late_output = lingers
    case.run(lambda c: c.execution.on_output("stream", {"name": "stdout", "text": "in time"}, 0))
    case.run(lambda c: c.execution.on_reply(REPLY, {}), lambda c: c.execution.on_idle())
    if lingers:
        case.run(lambda c: c.execution.settle())
    assert case.end() == "complete"
    actual = weakref.ref(case.collector)
    assert [output.text for output in case.collector.since(0)[0] if isinstance(output, Stream)] == ["in time"]
    del case.collector
    gc.collect()
    assert actual() is None
    case.run(lambda c: c.execution.settle(), lambda c: c.execution.on_output("stream", {"name": "stdout", "text": "late"}, 0))
    assert [output.text for output in case.late.since(0)[0] if isinstance(output, Stream)] == ["late"]


def test_cells_of_other_clients_stop_the_clock_for_an_hour_at_most(case: Case) -> None:
    execution = case.execution
    turn: asyncio.Task[None] | None = None

    def wait(_: Case) -> None:
        nonlocal turn
        turn = asyncio.ensure_future(execution.wait_for_turn(10.0))

    case.run(wait)
    case.passes(1)
    case.run(lambda _: execution.hold())
    case.passes(module.HOLD_SECONDS_MAX - 1)
    case.run(lambda _: execution.release(), lambda _: execution.hold())
    case.passes(1)
    case.run(lambda _: execution.release(), lambda _: execution.hold())  # a kernel can report any number of them
    case.passes(8)
    assert turn is not None
    assert (turn.done(), execution.is_held) == (False, True)
    case.passes(1)
    assert turn.done()


def test_the_clock_goes_on_when_the_cell_of_another_client_has_ended(case: Case) -> None:
    execution = case.execution
    tasks: list[asyncio.Task[None]] = []
    case.run(lambda _: execution.hold(), lambda _: tasks.append(asyncio.ensure_future(execution.wait_for_turn(10.0))))
    case.passes(100)
    case.run(lambda _: execution.release())
    case.passes(9)
    assert not tasks[0].done()
    case.passes(1)
    assert tasks[0].done()
