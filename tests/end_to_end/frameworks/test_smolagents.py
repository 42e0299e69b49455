"""smolagents' own agent, with a scripted model, on a session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from smolagents import CodeAgent, FinalAnswerTool, Tool
from smolagents.local_python_executor import PythonExecutor as Base
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.serialization import SerializationError
from smolagents.utils import AgentExecutionError

from kernelexec import InvalidConfig
from kernelexec.adapters.smolagents import PythonExecutor
from tests.support.engine import IMAGE, needs_engine

pytestmark = pytest.mark.nightly

KINDS = ["local", pytest.param("container", marks=needs_engine)]


class Scripted(Model):
    """Says one text after the other."""

    def __init__(self, *texts: str) -> None:
        super().__init__(model_id="scripted")
        self.texts = list(texts)
        self.seen: list[str] = []

    def generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatMessage:
        self.seen.append(str(messages[-1].content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.texts.pop(0))


class Doubling(Tool):  # type: ignore[no-untyped-call]
    name = "doubled"
    description = "Doubles a number."
    inputs = {"number": {"type": "integer", "description": "the number"}}  # noqa: RUF012 - its form
    output_type = "integer"

    def forward(self, number: int) -> int:
        return 2 * number


def executor_of(kind: str, directory: Path) -> PythonExecutor:
    return PythonExecutor(kind, workspace=directory, config={"container": {"image": IMAGE}})


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[PythonExecutor]:
    with executor_of("local", tmp_path) as opened:
        yield opened


def code(text: str) -> str:
    return f"Thought: so.\n<code>\n{text}\n</code>"


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_fails_mends_it_and_answers(tmp_path: Path, kind: str) -> None:
    model = Scripted(code("x = doubled(number=given)\nprint(x)\nx / 0"), code("final_answer({'x': x, 'half': x / 2})"))
    with executor_of(kind, tmp_path) as executor:
        tools: list[Any] = [Doubling()]  # type: ignore[no-untyped-call]
        agent = CodeAgent(tools=tools, model=model, executor=executor, verbosity_level=0)
        assert agent.run("compute", additional_args={"given": 21}) == {"x": 42, "half": 21.0}
    assert "ZeroDivisionError" in model.seen[1]
    assert "state kept" in model.seen[1]


def test_an_agent_runs_again(executor: PythonExecutor) -> None:
    model = Scripted(*(code(f"final_answer({number})") for number in range(3)))
    agent = CodeAgent(tools=[], model=model, executor=executor, verbosity_level=0)
    for number in range(3):
        assert agent.run("count", reset=False) == number
        if number:
            executor.session.restart()


def test_the_executor_is_an_executor_of_smolagents(executor: PythonExecutor) -> None:
    assert isinstance(executor, Base)
    assert executor("y = 41\nprint('said')\ny + 1").logs == "said\n"
    actual = executor("y + 1")
    assert (actual.output, actual.logs, actual.is_final_answer) == ("42", "", False)
    assert executor("None").output is None


def test_a_picture_is_a_value(executor: PythonExecutor) -> None:
    picture = executor("import matplotlib.pyplot as plt\nplt.plot([1, 2]);").output
    assert isinstance(picture, PIL.Image.Image)


SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'


@pytest.mark.parametrize("shown", [f"SVG({SVG!r})", f"display(SVG({SVG!r}))"])
def test_a_picture_that_pil_cannot_open_is_its_source(executor: PythonExecutor, shown: str) -> None:
    assert "<svg " in executor(f"from IPython.display import SVG, display\n{shown}").output


def test_a_value_wins_over_what_was_displayed(executor: PythonExecutor) -> None:
    show = "import PIL.Image\nred, blue = (PIL.Image.new('RGB', (size, 1)) for size in (2, 3))\n"
    assert executor(show + "display(red)\n6 * 7").output == "42"
    assert executor("import matplotlib.pyplot as plt\nplt.plot([1, 2])\n'said'").output == "'said'"
    assert executor("display(red)\nblue").output.size == (3, 1)
    assert executor("display(blue, red)").output.size == (2, 1)
    assert executor("display(red)\n'no picture'; None").output.size == (2, 1)


def test_a_picture_that_is_none_is_its_text(executor: PythonExecutor) -> None:
    broken = (
        "class Odd:\n    def _repr_png_(self):\n        return b'no picture'\n    def __repr__(self):\n        return 'odd'\n"
    )
    assert executor(broken + "Odd()").output == "odd"
    assert executor("display(Odd())").output is None


def test_a_picture_of_another_format_is_not_decoded(executor: PythonExecutor) -> None:
    """Pillow has Ghostscript read this one."""
    document = "%!PS-Adobe-3.0 EPSF-3.0\\n%%BoundingBox: 0 0 9 9\\n%%EndComments\\n"
    code = f"import base64\ndisplay({{'image/png': base64.b64encode(b'{document}').decode()}}, raw=True)"
    assert not isinstance(executor(code).output, PIL.Image.Image)


def test_variables_are_sent_as_values(executor: PythonExecutor) -> None:
    executor.send_variables({"data": {"a": [1, (2, 3)]}})
    assert executor("data['a'][1]").output == "(2, 3)"


def test_a_death_is_reported_and_the_next_cell_runs(executor: PythonExecutor) -> None:
    with pytest.raises(AgentExecutionError, match="state lost"):
        executor("import os; os._exit(1)")
    assert executor("1 + 1").output == "2"


DEATHS = {
    "in a cell": "import os; os._exit(1)",
    "between cells": "import os, threading\nthreading.Timer(0.2, os._exit, [1]).start()",
    "by a restart": "",
    "never": "1",
}


@pytest.mark.parametrize("death", DEATHS)
def test_an_agent_finishes_in_whatever_kernel_comes_after(executor: PythonExecutor, death: str) -> None:
    tools: Any = {"final_answer": FinalAnswerTool(), "doubled": Doubling()}  # type: ignore[no-untyped-call]
    executor.send_variables({"given": 20})
    executor.send_variables({"more": 1})
    executor.send_tools(tools)
    before = executor.session.kernel_epoch
    if death == "by a restart":
        executor.session.restart()
    else:
        with suppress(AgentExecutionError):
            executor(DEATHS[death])
    while death == "between cells" and executor.session.connection_file is not None:
        time.sleep(0.01)
    actual = executor("final_answer(doubled(number=given + more))")
    assert (actual.is_final_answer, actual.output) == (True, 42)
    assert executor.session.kernel_epoch == before + (death != "never")
    assert executor("given").output == "20"


def test_unsendable_variables_are_not_sent_again(executor: PythonExecutor) -> None:
    executor.send_variables({"given": 1})
    with pytest.raises(SerializationError):
        executor.send_variables({"given": object()})
    executor.session.restart()
    assert executor("given").output == "1"


def test_an_answer_that_is_too_large_is_reported(executor: PythonExecutor) -> None:
    answering: Any = FinalAnswerTool()  # type: ignore[no-untyped-call]
    executor.send_tools({"final_answer": answering})
    actual = executor("final_answer('x' * 60_000)")
    assert (actual.is_final_answer, len(actual.output)) == (True, 60_000)
    with pytest.raises(AgentExecutionError, match="save it to a file"):
        executor("final_answer('x' * 70_000)")


@pytest.mark.parametrize("value", ["(1, {2})", "PIL.Image.new('RGB', (3, 2))", "numpy.arange(3)"])
def test_an_answer_keeps_its_type(executor: PythonExecutor, value: str) -> None:
    answering: Any = FinalAnswerTool()  # type: ignore[no-untyped-call]
    executor.send_tools({"final_answer": answering})
    actual = executor(f"import numpy, PIL.Image\nfinal_answer({value})").output
    expected = eval(value, {"numpy": np, "PIL": PIL})  # noqa: S307 - of the lines above
    assert actual == expected if isinstance(expected, tuple) else np.array_equal(actual, expected)


@pytest.mark.parametrize("answer", ["5", "pickle:gASVAAAA", 'safe:{"__type__":"tuple"}', "safe:" + "[" * 10_000])
def test_an_answer_that_cannot_be_read_is_reported(executor: PythonExecutor, answer: str) -> None:
    with pytest.raises(AgentExecutionError, match="The final answer cannot be read"):
        executor(f"class FinalAnswerException(Exception): pass\nraise FinalAnswerException({answer!r})")


def test_packages_that_cannot_be_had_end_it(tmp_path: Path) -> None:
    with pytest.raises(AgentExecutionError):
        PythonExecutor("local", workspace=tmp_path, additional_imports=["no-package-has-this-name-0"])
    with pytest.raises(InvalidConfig):
        PythonExecutor("local", workspace=tmp_path, config={"nonsense": 1})
