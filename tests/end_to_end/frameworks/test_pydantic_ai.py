"""A session under Pydantic-AI: agents call its tools, and its workspace passes the framework's conformance suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from kernelexec import Executor
from kernelexec.adapters import pydantic_ai
from kernelexec.adapters.pydantic_ai import SessionToolset, SessionWorkspace
from tests.support.engine import IMAGE, needs_engine
from tests.support.framework_suites import failures, run_suite, runs_suite
from tests.support.pace import slow, until

pytestmark = pytest.mark.nightly

KINDS = ["local", pytest.param("container", marks=needs_engine)]
#: Rules of the suite that need two operations at once: a session's take turns.
CONCURRENT = ("test_cancellation_stops_foreground_work", "test_destroying_environment_during_command_raises_unavailable")
#: Rules that the suite leaves out: root has all rights, and paths are resolved by the suite's own shell commands.
INAPPLICABLE = {"test_permission_denied_uses_builtin_error", "test_native_realpath_keeps_the_working_dir_and_missing_names"}


def agent(session_toolset: SessionToolset, *codes: str) -> tuple[Agent, list[ToolReturnPart]]:
    """Return an agent whose model runs these cells, and the list of what it gets for them."""
    answers: list[ToolReturnPart] = []
    pending = list(codes)

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answers.extend(part for part in messages[-1].parts if isinstance(part, ToolReturnPart))
        if not pending:
            return ModelResponse(parts=[TextPart("done")])
        code = pending.pop(0)
        arguments = {"code": code, "timeout": 1 if "sleep" in code else None}
        return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, arguments)])

    return Agent(FunctionModel(model), toolsets=[session_toolset]), answers


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path, config={"output": {"stream_bytes": 1000}}) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_keeps_its_state_and_gets_pictures(tmp_path: Path, kind: str) -> None:
    with Executor(kind, workspace=tmp_path, config={"container": {"image": IMAGE}}) as executor:
        toolset = SessionToolset(executor.session(), id="kernel")
        first, answers = agent(toolset, "x = 41", "import matplotlib.pyplot as plt\nplt.plot([x, 1]);", "x / 0")
        assert asyncio.run(first.run("compute")).output == "done"
        assert toolset.id == "kernel"
        pictured: Any = answers[1].content
        text, picture = pictured
        assert "files made or changed: outputs/cell-0002-1.png" in text
        assert isinstance(picture, BinaryContent)
        assert (picture.media_type, picture.data[:4]) == ("image/png", b"\x89PNG")
        assert "ZeroDivisionError" in str(answers[2].content)
        second, answers = agent(toolset, "x + 1", "import time; time.sleep(60)", "x")
        asyncio.run(second.run("go on"))
        assert str(answers[0].content).splitlines()[1] == "42"
        assert "Timeout: it was ended" in str(answers[1].content)
        assert str(answers[2].content).splitlines()[1] == "41"


@pytest.mark.no_cover
@runs_suite
def test_the_conformance_suite_passes(tmp_path: Path) -> None:
    prefix = "tests/end_to_end/frameworks/suites/pydantic_ai_suite.py::TestSessionWorkspace::"
    outcomes = run_suite("pydantic_ai_suite", tmp_path, "local", options=[f"--deselect={prefix}{name}" for name in CONCURRENT])
    assert len(outcomes) > 35
    assert failures(outcomes).keys() <= {f"TestSessionWorkspace.{name}" for name in INAPPLICABLE}, failures(outcomes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_workspace_runs_commands(tmp_path: Path, kind: str) -> None:
    async def use(executor: Executor) -> None:
        workspace = SessionWorkspace(executor)
        assert getattr(workspace, "ref") is None  # noqa: B009 - later it is another one
        ran = await workspace.run(
            "printf 'a\\rb\\033[1mc'; printf '%s' \"$NAME\" >&2; exit 3", shell=True, env={"NAME": "a \u202e"}
        )
        assert (ran.stdout, ran.stderr, ran.exit_code) == ("a\rb\x1b[1mc", "a \\u202e", 3)
        assert len((await workspace.run(["head", "-c", "3000000", "/dev/zero"])).stdout) == 3_000_000
        with pytest.raises(WorkspaceTimeoutError) as caught:
            await workspace.run("echo before; sleep 600", shell=True, timeout=slow(3))
        assert caught.value.stdout == "before\n"
        running = asyncio.create_task(workspace.run("echo $$ > pid; sleep 600", shell=True))
        await asyncio.to_thread(until, lambda: any(path.stat().st_size for path in tmp_path.glob("*/pid")))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await workspace.run("kill -0 $(cat pid)", shell=True)).exit_code == 1
        assert isinstance(workspace.ref, WorkspaceRef)
        again = SessionWorkspace(executor, workspace.ref)
        assert await again.working_dir() == await workspace.working_dir()
        executor.close_session(workspace.ref.id)
        for closed in (workspace, SessionWorkspace(executor, workspace.ref)):
            with pytest.raises(WorkspaceUnavailableError):
                await closed.run(["true"])

    config = {"container": {"image": IMAGE}, "output": {"stream_bytes": 1000}}
    with Executor(kind, workspace=tmp_path, config=config) as executor:
        asyncio.run(use(executor))


def test_a_workspace_refuses_what_it_cannot_run(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = SessionWorkspace(executor)
    refused = asyncio.run(workspace.run("rm -rf /", shell=True))
    assert refused.exit_code == 126
    assert "rm -rf" in refused.stderr
    with pytest.raises(ValueError, match="timeout=0"):
        asyncio.run(workspace.run(["true"], timeout=0))
    monkeypatch.setattr(pydantic_ai, "OUTPUT_BYTES", 100)
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        asyncio.run(workspace.run("seq 1000", shell=True))
    assert caught.value.stdout.startswith("1\n2\n")
    assert len(caught.value.stdout) == 100
    with pytest.raises(WorkspaceUnavailableError, match="belongs to docker"):
        SessionWorkspace(executor, WorkspaceRef(provider="docker", id="x"))
