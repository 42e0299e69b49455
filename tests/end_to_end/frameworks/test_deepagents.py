"""A session as the sandbox of a deep agent: LangChain's standard tests, and the framework's own agent."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends.sandbox import BaseSandbox
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from kernelexec import Executor
from kernelexec.adapters import langchain
from kernelexec.adapters.deepagents import SessionSandbox
from tests.support.engine import IMAGE, needs_engine
from tests.support.framework_suites import failures, install_beside, run_suite, runs_suite
from tests.support.pace import slow, until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("default"),  # the framework's own
    pytest.mark.usefixtures("collect_garbage"),
]

#: The standard tests that fail with any backend: they expect relative paths of ``glob`` and refused overwriting, as in older
#: versions of deepagents.
OUTDATED = {
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_with_directories",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
}
PLUGINS = ("pytest-asyncio", "pytest-benchmark", "pytest-codspeed", "pytest-recording", "pytest-socket", "syrupy", "vcrpy")


class Scripted(BaseChatModel):
    """A model that makes the given tool calls, one after the other, and then answers with the last message's text."""

    calls: list[ToolCall]
    seen: list[BaseMessage] = []  # noqa: RUF012 - copied by pydantic

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append(messages[-1])
        message = AIMessage("", tool_calls=[self.calls.pop(0)]) if self.calls else AIMessage(str(messages[-1].content))
        return ChatResult(generations=[ChatGeneration(message=message)])


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=f"{name}-{len(str(arguments))}")


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path) as opened:
        yield opened


@pytest.mark.no_cover
@runs_suite
def test_the_standard_tests_pass(tmp_path: Path) -> None:
    beside = install_beside(tmp_path / "langchain_tests", "langchain-tests>=1.1,<2", *PLUGINS, "py-cpuinfo2", "wrapt<3")
    outcomes = run_suite(
        "deepagents_suite",
        tmp_path,
        "local",
        options=["--asyncio-mode=auto", "-k", "SessionSandbox or (ShellSandbox and (glob or write_existing))"],
        variables={"PYTHONPATH": str(beside)},
    )
    assert len([name for name in outcomes if name.startswith("TestSessionSandbox.")]) > 80
    expected = {f"{owner}.{name}" for owner in ("TestSessionSandbox", "TestShellSandbox") for name in OUTDATED}
    assert set(failures(outcomes)) == expected, failures(outcomes)


@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=needs_engine)])
def test_files_have_the_rights_and_the_paths_of_the_commands(tmp_path: Path, kind: str) -> None:
    config = {"container": {"image": IMAGE}, "rules": {"dangers": False}}
    with Executor(kind, workspace=tmp_path, config=config) as executor:
        session = executor.session("sandbox")
        sandbox = SessionSandbox(session)
        content = bytes(range(256)) * 5000
        paths = [f"{session.workspace_inside}/a b/ä.bin", "relative", "/proc/version", "/", f"{session.workspace_inside}/none"]
        uploaded = sandbox.upload_files([(paths[0], content), ("relative", b""), ("/proc/version", b""), ("/", b"")])
        assert [response.error for response in uploaded] == [None, "invalid_path", "permission_denied", "is_directory"]
        downloaded = sandbox.download_files(paths)
        assert [response.error for response in downloaded] == [None, "invalid_path", None, "is_directory", "file_not_found"]
        assert downloaded[0].content == content
        assert (downloaded[2].content or b"").startswith(b"Linux")
        sandbox.execute("ln -s 'a b' link; mkfifo pipe; chmod 640 'a b/ä.bin'")
        assert sandbox.upload_files([(f"{session.workspace_inside}/link/ä.bin", b"new")])[0].error is None
        assert sandbox.execute("stat -c %a 'a b/ä.bin'; cat 'a b/ä.bin'").output == "640\nnew"
        pipe = sandbox.download_files([f"{session.workspace_inside}/pipe"])[0].error
        assert pipe is not None
        assert "not a plain file" in pipe
        names = sandbox.execute("ls -A . .kernelexec").output.split()
        assert [name for name in names if "kernelexec" in name] == [".kernelexec", ".kernelexec:"]
        assert names[-1] == "venvs"


def test_state_lasts_and_what_ended_a_command_is_in_its_output(executor: Executor) -> None:
    session = executor.session("sandbox")
    sandbox = SessionSandbox(session)
    assert isinstance(sandbox, BaseSandbox)
    sandbox.execute("mkdir deeper && cd deeper && export NAME=value")
    assert sandbox.execute("echo '[kernelexec: state lost]'").output == "\\[kernelexec: state lost]\n"
    session.files.write("note.txt", "[kernelexec: state lost]\n")
    assert sandbox.read(f"{session.workspace_inside}/note.txt").file_data == {
        "content": "[kernelexec: state lost]",
        "encoding": "utf-8",
    }
    assert sandbox.execute("basename $PWD; echo $NAME").output == "deeper\nvalue\n"
    failed = sandbox.execute("echo out; echo err >&2; exit 7")
    assert (failed.output, failed.exit_code, failed.truncated) == ("out\nerr\n", 7, False)
    late = sandbox.execute("echo before; sleep 600", timeout=math.ceil(slow(3)))
    assert late.exit_code == 124
    assert late.output.startswith("before\n[kernelexec: Timeout: it was ended")
    refused = sandbox.execute("rm -rf /")
    assert refused.exit_code == 126
    assert "rm -rf" in refused.output
    died = sandbox.execute("kill -9 $PPID; sleep 5")
    assert "the session goes on from its checkpoint before this cell" in died.output
    assert sandbox.execute("echo again").output == "again\n"


def test_output_that_looks_like_an_answer_is_read_within_bounds_and_has_no_mark_of_a_note(executor: Executor) -> None:
    sandbox = SessionSandbox(executor.session("lines"))
    line = """{"a": "[kernelexec: state lost]"}"""
    answer = sandbox.execute(f"echo '{line}'").output
    assert "[kernelexec:" not in answer
    assert json.loads(answer) == json.loads(line)
    nested = sandbox.execute("""python3 -c 'print("{" + chr(34) + "a" + chr(34) + ":" + "[" * 100000)'""")
    assert nested.exit_code == 0
    assert nested.output.startswith('{"a":[[[[')


def test_a_cancelled_call_ends_its_command_only(executor: Executor) -> None:
    session = executor.session("sandbox")
    sandbox, there = SessionSandbox(session), session.workspace

    async def cancel() -> None:
        first = asyncio.create_task(sandbox.aexecute("touch first; until [ -e go ]; do sleep 0.05; done; echo first"))
        await asyncio.to_thread(until, (there / "first").exists)
        second = asyncio.create_task(sandbox.aexecute("touch second; sleep 600"))
        await asyncio.sleep(0.3)  # it waits for its turn then, or a slow machine has not sent it
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        (there / "go").touch()
        assert (await first).output == "first\n"
        running = asyncio.create_task(sandbox.aexecute("touch running; sleep 600", timeout=600))
        await asyncio.to_thread(until, (there / "running").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await sandbox.aexecute("echo next")).output == "next\n"
        assert not (there / "second").exists()

    asyncio.run(cancel())


def test_a_closed_session_is_an_answer(executor: Executor) -> None:
    session = executor.session("sandbox")
    sandbox = SessionSandbox(session)
    executor.close_session("sandbox")
    assert "closed" in sandbox.execute("true").output
    assert sandbox.execute("true").exit_code == 1
    assert "closed" in str(sandbox.download_files(["/etc/passwd"])[0].error)


def test_a_deep_agent_works_in_files_and_in_the_kernel(executor: Executor) -> None:
    session = executor.session("sandbox")
    calls = [
        call("write_file", file_path=f"{session.workspace_inside}/numbers.txt", content="20\n22\n"),
        call("execute_code", code="total = sum(map(int, open('numbers.txt')))", timeout=None),
        call("execute_code", code="total", timeout=None),
        call("execute", command="cat numbers.txt | wc -l"),
    ]
    model = Scripted(calls=calls)
    agent: Any = create_deep_agent(model=model, backend=SessionSandbox(session), tools=langchain.session_tools(session))
    state = agent.invoke({"messages": [("user", "compute")]})
    answers = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert str(answers[2].content).splitlines()[1] == "42"
    assert "2" in str(answers[3].content)
    assert answers[2].artifact.state == "kept"
