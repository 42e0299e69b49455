"""The outputs of a cell by iteration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, DisplayData, ExecuteResult, ExecutionResult, Session, Stream
from kernelexec.errors import InvalidCode
from tests.conftest import settings_of

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()


def test_outputs_come_as_they_arrive_and_the_result_is_last(session: Session) -> None:
    gate = session.workspace / "gate"
    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('gate'): time.sleep(0.01)\ndisplay(3)\n5"
    outputs = session.stream(code)
    first = next(outputs)
    gate.touch()
    *others, result = outputs
    assert first == Stream("stdout", "begun\n")
    assert [type(output) for output in others] == [DisplayData, ExecuteResult]
    assert isinstance(result, ExecutionResult)
    assert (result.ok, result.outputs) == (True, (first, *others))


def test_the_text_of_a_flood_is_that_of_the_result_or_less(session: Session) -> None:
    *outputs, result = session.stream("for i in range(20_000): print(i)")
    assert isinstance(result, ExecutionResult)
    assert "".join(output.text for output in outputs if isinstance(output, Stream)) == result.stdout


def test_a_failure_is_a_result_and_a_refusal_an_error(session: Session) -> None:
    *_, result = session.stream("1/0")
    assert isinstance(result, ExecutionResult)
    assert result.status == "error"
    with pytest.raises(InvalidCode):
        list(session.stream(""))


def test_a_cell_goes_on_if_iteration_stops(session: Session) -> None:
    for _ in session.stream("import time\nprint(1, flush=True)\ntime.sleep(0.5)\nx = 5"):
        break
    assert session.execute("x").value == 5


def test_tasks_iterate_too(kind: str, tmp_path: Path) -> None:
    async def steps() -> list[object]:
        isolation, config = settings_of(kind)
        async with AsyncExecutor(isolation, workspace=tmp_path, config=config) as executor, await executor.session() as session:
            return [output async for output in session.stream("print(1)\n2", timeout=60)]

    first, value, result = asyncio.run(steps())
    assert first == Stream("stdout", "1\n")
    assert isinstance(value, ExecuteResult)
    assert isinstance(result, ExecutionResult)
