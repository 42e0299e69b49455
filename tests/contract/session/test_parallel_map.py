"""One function or code over many inputs, in several sessions at the same time."""

from __future__ import annotations

import asyncio
import linecache
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kernelexec import AsyncExecutor, Executor
from kernelexec.errors import CapacityReached, Closed, InvalidRequest
from kernelexec.results import ExecutionFailed
from tests.conftest import EVERY_KIND, KINDS
from tests.support.night import at_night

#: Waits until as many sessions as the input says wait at the same time; returns the directory, which is one of each session.
#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_code_gets_a_mapping_of_names",)
TOGETHER = """
import os, time
from pathlib import Path
Path('../began').mkdir(exist_ok=True)
Path('../began', os.path.basename(os.getcwd())).touch()
while len(os.listdir('../began')) < count: time.sleep(0.01)
os.path.basename(os.getcwd())
"""
FOREVER = "import time; time.sleep(600)"
BOUND = 60


def double(value: Any) -> Any:
    """Doubles."""
    import json  # noqa: PLC0415 - it runs elsewhere

    return json.loads(json.dumps(value)) * 2


def failing(value: int) -> float:
    return 1 / value


async def later(value: int) -> int:
    return value


def stateful(_value: object) -> int:
    import builtins  # noqa: PLC0415 - it runs elsewhere

    calls: int = getattr(builtins, "calls", 0) + 1
    builtins.calls = calls  # type: ignore[attr-defined]
    return calls


@pytest.fixture(params=EVERY_KIND)
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    with Executor(
        request.param, workspace=tmp_path / "spaces", config={**KINDS[request.param], "checkpoints": "named"}
    ) as executor:
        yield executor


def test_results_are_in_the_order_of_the_inputs(executor: Executor) -> None:
    values = [1, "a", [1, None], 2.5, "", 7]
    results = executor.map(double, values, sessions=3)
    assert [result.value for result in results] == [value * 2 for value in values]  # type: ignore[operator]
    assert executor.sessions() == ()


def test_code_gets_a_mapping_of_names(executor: Executor) -> None:
    results = executor.map("a + b", [{"a": 1, "b": 2}, {"a": "x", "b": "y"}], sessions=1)
    assert [result.value for result in results] == [3, "xy"]


@pytest.fixture(scope="module")
def local_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    config = {"confinement": {"level": "off"}, "checkpoints": "named"}
    with Executor("local", workspace=tmp_path_factory.mktemp("spaces"), config=config) as executor:
        yield executor


@pytest.fixture
def local(local_executor: Executor) -> Executor:
    assert local_executor.sessions() == ()  # no test leaves one
    return local_executor


def test_inputs_that_are_no_inputs_are_named(local: Executor) -> None:
    def same(value: object) -> object:
        return value

    with pytest.raises(InvalidRequest, match=r"^inputs must be iterable, not int"):
        local.map(same, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"^inputs\[1\]: it cannot be sent"):
        local.map(same, [1, object()])


def test_as_many_sessions_run_at_the_same_time_as_are_asked_for(local: Executor) -> None:
    results = local.map(TOGETHER, [{"count": 3}] * 3, sessions=3, timeout=60)
    assert len({result.value for result in results}) == 3
    assert [result.value for result in local.map(stateful, range(3), sessions=1)] == [1, 2, 3]


def test_no_more_sessions_are_opened_than_there_are_inputs(local: Executor) -> None:
    assert local.map(double, [], sessions=4) == []
    assert [result.value for result in local.map(stateful, range(2), sessions=9)] == [1, 1]


def test_a_failed_call_is_a_result_in_its_place(local: Executor) -> None:
    results = local.map(failing, [1, 0, 2], sessions=2)
    assert [result.ok for result in results] == [True, False, True]
    assert results[1].error is not None
    assert results[1].error.ename == "ZeroDivisionError"


def test_inputs_are_read_when_a_session_is_free(local: Executor) -> None:
    read: list[int] = []

    def inputs() -> Iterator[dict[str, int]]:
        for number in range(5):
            read.append(number)
            yield {"seen": len(read)}

    assert [result.value for result in local.map("seen", inputs(), sessions=2)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("function", "inputs", "sessions", "reason"),
    [
        (lambda value: value, [1], 1, "<lambda> is none"),
        (print, [1], 1, "print is none"),
        (later, [1], 1, "later must be a plain function"),
        (double, [1], 0, "sessions=0: must be a number from 1 to 1000"),
        (double, [1], True, "sessions=True"),
        ("x", [1], 1, "must be a mapping of names"),
        ("x", [{"a b": 1}], 1, "is no name of a variable"),
        (double, [object()], 1, "has no form here"),
    ],
)
def test_invalid_arguments_of_a_map_are_refused(
    local: Executor, function: Any, inputs: list[Any], sessions: Any, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        local.map(function, inputs, sessions=sessions)
    assert local.sessions() == ()


def test_a_function_that_needs_variables_around_it_is_refused_by_their_names(local: Executor) -> None:
    factor = 2

    def times(value: int) -> int:
        return value * factor

    with pytest.raises(InvalidRequest, match="The function times needs factor from around it"):
        local.map(times, [1])


@pytest.mark.parametrize("lines", [None, ["import os\n"], ["def other(value):\n", "    return 0\n"]])
def test_a_function_without_its_source_is_refused(
    local: Executor, monkeypatch: pytest.MonkeyPatch, lines: list[str] | None
) -> None:
    monkeypatch.delitem(linecache.cache, "<string>", raising=False)
    if lines is not None:  # as Python 3.13 keeps the program of `python -c`
        monkeypatch.setitem(linecache.cache, "<string>", (0, None, lines, "<string>"))
    namespace: dict[str, Any] = {}
    exec("def generated(value):\n    return value", namespace)  # noqa: S102 - of this test
    with pytest.raises(InvalidRequest, match="The source of generated cannot be read"):
        local.map(namespace["generated"], [1])


def test_a_definition_that_fails_is_an_error(local: Executor) -> None:
    with pytest.raises(ExecutionFailed, match="NameError"):
        local.map(decorated, [1])


def unknown(function: Any) -> Any:
    return function


@unknown
def decorated(value: int) -> int:
    return value


def test_the_limit_of_sessions_holds(tmp_path: Path) -> None:
    with (
        Executor("local", workspace=tmp_path, config={"capacity": {"sessions": 1}}) as executor,
        pytest.raises(CapacityReached),
    ):
        executor.map("import time; time.sleep(600)", [{"a": 1}, {"a": 2}], sessions=2)
    assert executor.config.capacity.sessions == 1


@pytest.mark.parametrize("cancel", [anyio.move_on_after, *at_night(asyncio.timeout)])
def test_a_cancelled_map_leaves_no_session(tmp_path: Path, cancel: Any) -> None:
    async def use() -> tuple[str, ...]:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            with suppress(TimeoutError):
                async with enter_either(cancel(1)):
                    await executor.map(FOREVER, [{"a": 1}] * 4, sessions=2)
            return executor.sessions()

    assert anyio.run(use) == ()


@asynccontextmanager
async def enter_either(scope: Any) -> AsyncIterator[None]:
    if isinstance(scope, anyio.CancelScope):
        with scope:
            yield
    else:
        async with scope:
            yield


def test_an_input_of_a_list_that_cannot_be_sent_is_refused_before_anything_runs(local: Executor, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"inputs\[2\]: 'path' cannot be sent: path is of the class builtins.object"):
        local.map("open(path, 'w').close()", [{"path": str(tmp_path / "a")}, {"path": "b"}, {"path": object()}], sessions=1)
    with pytest.raises(InvalidRequest, match=r"inputs\[1\]: Each input of code must be a mapping"):
        local.map("open(path, 'w').close()", ({"path": str(tmp_path / "a")}, 3))
    assert not (tmp_path / "a").exists()


def test_an_input_of_an_iterator_that_cannot_be_sent_is_an_error_in_its_place(local: Executor) -> None:
    results = local.map(double, iter([1, object(), 2, b"no JSON", 3]), sessions=1)
    assert [result.status for result in results] == ["ok", "aborted", "ok", "error", "ok"]
    refused = results[1].error
    assert refused is not None
    assert (refused.ename, "has no form here" in refused.evalue) == ("InvalidRequest", True)
    with pytest.raises(ExecutionFailed, match="aborted: InvalidRequest: 'kernelexec_input' cannot be sent"):
        results[1].raise_for_error()
    assert [result.value for result in results if result.ok] == [2, 4, 6]


def test_a_call_that_loses_its_kernel_costs_no_other_call(local: Executor) -> None:
    results = local.map(fragile, [1, 0, 2, 3], sessions=1)
    assert [result.status for result in results] == ["ok", "error", "ok", "ok"]
    assert [result.value for result in results if result.ok] == [1, 2, 3]
    assert results[1].state == "lost"


def fragile(value: int) -> int:
    import os  # noqa: PLC0415 - it runs elsewhere

    return value or os._exit(3)


def test_the_inputs_of_an_iterator_are_read_in_the_thread_of_the_caller(local: Executor) -> None:
    threads = set()

    def inputs() -> Iterator[dict[str, int]]:
        for number in range(4):
            threads.add(threading.get_ident())
            yield {"value": int(session.execute(f"{number} + 1").text)}

    with local.session("a") as session:
        assert [result.value for result in local.map("value", inputs(), sessions=2)] == [1, 2, 3, 4]
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, *at_night(SystemExit, asyncio.CancelledError, GeneratorExit)])
def test_errors_of_the_inputs_are_raised_unchanged_and_end_the_running_cells(local: Executor, kind: Any) -> None:
    def inputs() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        wait_until(lambda: any((session := local.open_session(name)) and session.busy for name in local.sessions()))
        raise failure

    failure = kind("mine")
    with pytest.raises(kind) as caught:
        local.map(FOREVER, inputs(), sessions=2)
    assert caught.value is failure
    assert local.sessions() == ()
    assert [result.value for result in local.map(double, [2])] == [4]


@pytest.mark.parametrize("has_blocking_inputs", [False, True])
def test_an_interrupt_ends_the_running_cells_and_their_sessions(
    local: Executor, tmp_path: Path, *, has_blocking_inputs: bool
) -> None:
    def inputs() -> Iterator[dict[str, str]]:
        yield {"path": str(tmp_path / "began")}
        while has_blocking_inputs:
            time.sleep(0.05)

    with interrupt_when(tmp_path / "began"), pytest.raises(KeyboardInterrupt):
        local.map(f"open(path, 'w').close()\n{FOREVER}", inputs(), sessions=2)
    assert local.sessions() == ()
    assert [result.value for result in local.map(double, [2])] == [4]


@contextmanager
def interrupt_when(path: Path) -> Iterator[None]:
    """Send Ctrl+C to this process as soon as a file is there."""

    def watch() -> None:
        wait_until(path.exists)
        os.kill(os.getpid(), signal.SIGINT)

    handler, wakeup = signal.signal(signal.SIGINT, signal.default_int_handler), signal.set_wakeup_fd(-1)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(wakeup)


def test_the_end_of_the_executor_ends_a_map_that_waits_for_its_inputs(tmp_path: Path) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        closing.start()
        closing.join(BOUND)
        yield 2

    opened = Executor("local", workspace=tmp_path).open()
    closing = threading.Thread(target=opened.close)
    with pytest.raises(Closed):
        opened.map(double, inputs(), sessions=1)
    assert not closing.is_alive()


def test_an_asynchronous_map_takes_asynchronous_inputs(tmp_path: Path) -> None:
    async def inputs() -> AsyncIterator[Any]:
        for value in (1, object(), "a"):
            await anyio.lowlevel.checkpoint()
            yield value

    async def use() -> list[tuple[str, object]]:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            results = await executor.map(double, inputs(), sessions=2)
            return [(result.status, result.value if result.ok else None) for result in results]

    assert anyio.run(use) == [("ok", 2), ("aborted", None), ("ok", "aa")]


def test_the_end_of_an_executor_ends_an_asynchronous_map(tmp_path: Path) -> None:
    async def inputs() -> AsyncIterator[int]:
        yield 1
        started.set()
        await anyio.sleep_forever()

    async def use() -> None:
        executor = await AsyncExecutor("local", workspace=tmp_path).open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_map, executor)
            await started.wait()
            await executor.close()

    async def run_map(executor: AsyncExecutor) -> None:
        with pytest.raises(Closed):
            await executor.map(double, inputs())
        ended.append(True)

    started, ended = asyncio.Event(), list[bool]()
    anyio.run(use)
    assert ended == [True]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
