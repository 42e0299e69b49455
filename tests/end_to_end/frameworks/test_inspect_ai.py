"""Sessions as sandboxes of Inspect: its self-check, and an evaluation with a scripted model."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.engine import IMAGE, SUDO, needs_engine
from tests.support.framework_suites import failures, run_suite, runs_suite
from tests.support.pace import slow, until

if TYPE_CHECKING:
    from kernelexec.adapters.inspect_ai import KernelSandboxConfig, KernelSandboxEnvironment

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("default"),  # the framework's own
    pytest.mark.usefixtures("collect_garbage"),
]
LOCAL: dict[str, Any] = {"isolation": "local"}
CONTAINER: dict[str, Any] = {"config": {"container": {"image": IMAGE}}}
KINDS = [pytest.param(LOCAL, id="local"), pytest.param(CONTAINER, id="container", marks=needs_engine)]


def config_of(options: dict[str, Any]) -> KernelSandboxConfig:
    from kernelexec.adapters.inspect_ai import KernelSandboxConfig

    return KernelSandboxConfig(**options)


@asynccontextmanager
async def opened(config: KernelSandboxConfig | str) -> AsyncIterator[KernelSandboxEnvironment]:
    from kernelexec.adapters.inspect_ai import KernelSandboxEnvironment

    environments = await KernelSandboxEnvironment.sample_init("task", config, {})
    sandbox = environments["default"].as_type(KernelSandboxEnvironment)
    try:
        yield sandbox
    finally:
        await KernelSandboxEnvironment.sample_cleanup("task", config, environments, interrupted=False)
        await KernelSandboxEnvironment.task_cleanup("task", config, cleanup=True)
    assert not sandbox.session.workspace.parent.exists()


@needs_engine
@pytest.mark.no_cover
@runs_suite
def test_the_self_check_passes(tmp_path: Path) -> None:
    options = {"isolation": "container", "container": {"image": SUDO, "sudo": True, "user": "1000:1000"}}
    outcomes = run_suite("inspect_ai_suite", tmp_path, "container", variables={"SUITE_OPTIONS": json.dumps(options)})
    assert len(outcomes) > 40
    assert failures(outcomes) == {}


def test_an_evaluation_runs_commands_and_cells(tmp_path: Path) -> None:
    from inspect_ai import Task
    from inspect_ai import eval as evaluate
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ChatMessageTool, ContentImage, ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import bash
    from inspect_ai.util import SandboxEnvironmentSpec

    from kernelexec.adapters.inspect_ai import python_session

    figure = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "cat numbers.txt; echo problem >&2"}),
        ModelOutput.for_tool_call("mockllm/model", "python_session", {"code": "x = sum(map(int, open('numbers.txt')))"}),
        ModelOutput.for_tool_call("mockllm/model", "python_session", {"code": f"print(x)\n{figure}"}),
        ModelOutput.for_tool_call("mockllm/model", "python_session", {"code": "import time; time.sleep(600)"}),
        ModelOutput.for_tool_call("mockllm/model", "python_session", {"code": "import os; os._exit(1)"}),
        ModelOutput.from_content("mockllm/model", "The sum is 42."),
    ]
    for output in outputs:
        output.usage = ModelUsage()  # without it the framework loads a tokenizer from the network
    task = Task(
        dataset=[Sample("Add the numbers.", target="42", files={"numbers.txt": "20\n22\n"})],
        solver=[use_tools(bash(timeout=30), python_session(timeout=math.ceil(slow(8)))), generate()],
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("kernelexec", config_of(LOCAL)),
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    log = evaluate(task, model=model, log_dir=str(tmp_path), display="none", log_format="json")[0]
    assert log.status == "success", log.error
    assert log.samples is not None
    sample = log.samples[0]
    assert sample.scores is not None
    assert sample.scores["includes"].value == "C"
    printed, _, pictured, late, died = (message for message in sample.messages if isinstance(message, ChatMessageTool))
    assert printed.text.endswith("problem\n\n20\n22\n")
    assert pictured.text.endswith("\n42")
    assert isinstance(pictured.content[1], ContentImage)
    assert "Timeout: it was ended" in late.text
    assert "state restored" in died.text
    assert "numbers.txt" not in [path.name for path in Path.cwd().iterdir()]


@pytest.mark.parametrize("options", KINDS)
def test_commands_have_exact_streams_and_their_own_errors(options: dict[str, Any]) -> None:
    from inspect_ai.util import OutputLimitExceededError, SandboxUnavailableError, SandboxUserUnsupportedError

    from kernelexec.adapters.inspect_ai import KernelSandboxEnvironment

    async def use() -> None:
        async with opened(config_of(options)) as sandbox:
            ran = await sandbox.exec(
                ["sh", "-c", "printf 'a\\rb\\033[1mc'; cat >&2; exit 3"], input=b"\xff\0\xc2\x9b", env={"A": "b"}
            )
            assert (ran.success, ran.returncode, ran.stdout, ran.stderr) == (False, 3, "a\rb\x1b[1mc", "\ufffd\0\\x9b")
            assert (await sandbox.exec(["printenv", "A"], env={"A": "b c"})).stdout == "b c\n"
            assert (await sandbox.exec(["no-such-program"])).returncode == 127
            assert (await sandbox.exec(["pwd"], cwd="/")).stdout == "/\n"
            assert (await sandbox.exec(["pwd"], cwd="missing")).returncode != 0
            assert (await sandbox.exec(["sh", "-c", "cd /; export A=b"])).success
            assert (await sandbox.exec(["sh", "-c", "echo $A; pwd"])).stdout == f"\n{sandbox.session.workspace_inside}\n"
            with pytest.raises(OutputLimitExceededError) as caught:
                await sandbox.exec(["head", "-c", "11000000", "/dev/zero"])
            assert len(caught.value.truncated_output or "") == 10 * 1024 * 1024
            running = asyncio.create_task(sandbox.exec(["sh", "-c", "touch begun; exec sleep 600"]))
            await asyncio.to_thread(until, (sandbox.session.workspace / "begun").exists)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            with pytest.raises((SandboxUserUnsupportedError, AssertionError)):
                assert (await sandbox.exec(["true"], user="nonexistent")).success
            lost = await sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 5"])
            assert not lost.success
            assert (await sandbox.exec(["echo", "again"])).stdout == "again\n"
            connection = await sandbox.connection()
            assert sandbox.session.workspace_inside in connection.command
            assert (connection.container is None) == (options is LOCAL)
            session = sandbox.session
        closed = KernelSandboxEnvironment(session)
        for call in (closed.exec(["true"]), closed.read_file("x"), closed.write_file("x", "")):
            with pytest.raises(SandboxUnavailableError):
                await call
        with pytest.raises(ConnectionError):
            await closed.connection()

    asyncio.run(use())


def test_a_configuration_may_be_a_file(tmp_path: Path) -> None:
    from kernelexec.adapters.inspect_ai import KernelSandboxEnvironment

    path = tmp_path / "sandbox.yaml"
    path.write_text("isolation: local\nconfig:\n  environment: {set: {GREETING: hello}}\n", encoding="utf-8")

    async def use() -> str:
        async with opened(str(path)) as first, opened(config_of(LOCAL)) as second:
            await first.write_file("a/b.txt", "text")
            with pytest.raises(FileNotFoundError):
                await second.read_file("a/b.txt")
            with pytest.raises(OSError, match=r"b\.txt.*(Not a directory|File exists)"):  # the reason, and no missing right
                await first.write_file("a/b.txt/c", "text")
            return (await first.exec(["printenv", "GREETING"])).stdout

    assert asyncio.run(use()) == "hello\n"
    config = KernelSandboxEnvironment.config_deserialize({"isolation": "local"})
    assert config == config_of(LOCAL)
    shutil.rmtree(tmp_path)
