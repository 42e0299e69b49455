"""One function or code over many inputs, in several sessions at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from kernelexec import AsyncExecutor, Executor
from kernelexec.errors import CapacityReached, InvalidRequest
from kernelexec.results import ExecutionFailed
from tests.conftest import EVERY_KIND, KINDS

#: Waits until as many sessions as the input says wait at the same time; returns the directory, which is one of each session.
TOGETHER = """
import os, time
from pathlib import Path
Path('../began').mkdir(exist_ok=True)
Path('../began', os.path.basename(os.getcwd())).touch()
while len(os.listdir('../began')) < count: time.sleep(0.01)
os.path.basename(os.getcwd())
"""


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
    with Executor(request.param, workspace=tmp_path / "spaces", config=KINDS[request.param]) as executor:
        yield executor


def test_results_are_in_the_order_of_the_inputs(executor: Executor) -> None:
    values = [1, "a", [1, None], 2.5, "", 7]
    results = executor.map(double, values, sessions=3)
    assert [result.value for result in results] == [value * 2 for value in values]  # type: ignore[operator]
    assert executor.sessions() == ()


def test_code_gets_a_mapping_of_names(executor: Executor) -> None:
    results = executor.map("a + b", [{"a": 1, "b": 2}, {"a": "x", "b": "y"}], sessions=1)
    assert [result.value for result in results] == [3, "xy"]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path / "spaces", config={"confinement": {"level": "off"}}) as executor:
        yield executor


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
def test_what_makes_no_sense_is_refused(local: Executor, function: Any, inputs: list[Any], sessions: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        local.map(function, inputs, sessions=sessions)
    assert local.sessions() == ()


def test_a_function_that_needs_variables_around_it_is_refused_by_their_names(local: Executor) -> None:
    factor = 2

    def times(value: int) -> int:
        return value * factor

    with pytest.raises(InvalidRequest, match="The function times needs factor from around it"):
        local.map(times, [1])


def test_a_definition_that_fails_is_an_error(local: Executor) -> None:
    namespace: dict[str, Any] = {}
    exec("def generated(value):\n    return value", namespace)  # noqa: S102 - of this test
    with pytest.raises(InvalidRequest, match="The source of generated cannot be read"):
        local.map(namespace["generated"], [1])
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


def test_a_cancelled_map_leaves_no_session(tmp_path: Path) -> None:
    async def use() -> tuple[str, ...]:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            with anyio.move_on_after(1):
                await executor.map("import time; time.sleep(600)", [{"a": 1}] * 4, sessions=2)
            return executor.sessions()

    assert anyio.run(use) == ()
