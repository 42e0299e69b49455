"""The README's table of what happens when things go wrong: every row is a test here, and no row is missing."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, ExecutionResult, Executor, Session
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import WORKSPACE
from tests.conftest import EVERY_WAY, KINDS
from tests.support.engine import MINIMAL, needs_engine
from tests.support.killed_server import killed_server
from tests.support.mcp_clients import record_of, text_of
from tests.support.mcp_server import serving
from tests.support.night import named_cases
from tests.support.pace import BOUND, RunningCell, slow, until
from tests.support.paths import ROOT

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = (
    "test_the_cell_raises[container]",
    "test_a_command_exits_7[container-!]",
    "test_input_without_an_answer[container]",
    "test_out_of_memory",
    "test_the_kernel_dies[container-segmentation fault]",
    "test_the_kernel_dies[container-SIGKILL]",
    "test_too_much_of_something[container-300 processes]",
    "test_too_much_of_something[container-no space]",
)
#: The tests lose the state, so no cell has a checkpoint.
CHECKPOINTS = "named"
#: The documents with rows of the table of failures, and the titles above them.
TABLES = {"README.md": "## When things go wrong", "kernelexec/guide/production.md": "## When a server ends"}
SWALLOWS = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
covered: set[str] = set()


@pytest.fixture(scope="module", params=EVERY_WAY)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def row(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    covered.add(name)
    return lambda test: test


def rows(document: str, title: str) -> list[str]:
    table = (ROOT / document).read_text(encoding="utf-8").split(title)[1].split("\n## ")[0]
    return [re.split(r"\s*\|\s*", line)[1] for line in table.splitlines() if line.startswith("| ")][2:]


def test_every_row_has_a_test() -> None:
    assert {name for document, title in TABLES.items() for name in rows(document, title)} == covered


def runs_in_step(session: Session, *, kept: bool) -> ExecutionResult:
    """The next cell runs, is answered by itself, and sees the variables or not."""
    following = session.execute("print('x' in globals())")
    assert (following.status, following.stdout) == ("ok", f"{kept}\n")
    return following


def verdict(result: ExecutionResult) -> tuple[object, ...]:
    return (result.status, result.exit_code, result.state, result.interrupted, result.cause)


@row("the cell raises")
@pytest.mark.shared_session
def test_the_cell_raises(session: Session) -> None:
    session.execute("x = 1")
    assert verdict(session.execute("1/0")) == ("error", 1, "kept", None, None)
    runs_in_step(session, kept=True)


@row("a command exits with 7")
@pytest.mark.parametrize("how", ["execute_command", "!", "%%bash", "%%sh"])
@pytest.mark.shared_session
def test_a_command_exits_7(session: Session, how: str) -> None:
    session.execute("x = 1")
    if how == "execute_command":
        result = session.execute_command("echo out; exit 7")
    else:
        result = session.execute("!echo out; exit 7" if how == "!" else f"{how}\necho out\nexit 7")
    assert verdict(result) == ("error", 7, "kept", None, None)
    assert result.stdout == "out\n"
    runs_in_step(session, kept=True)


@row("timeout, and the cell obeys the interrupt")
@pytest.mark.shared_session
@pytest.mark.nightly
def test_a_timeout_that_the_cell_obeys(session: Session) -> None:
    session.execute("x = 1")
    result = session.execute("print('before')\nwhile True: pass", timeout=slow(2))
    assert verdict(result) == ("error", 124, "kept", "timeout", None)
    assert result.stdout == "before\n"
    runs_in_step(session, kept=True)


@row("timeout, and the cell swallows every interrupt")
def test_a_timeout_that_the_cell_swallows(session: Session) -> None:
    session.execute("x = 1")
    result = session.execute(SWALLOWS, timeout=slow(2))
    assert verdict(result) == ("error", 124, "lost", "timeout", "timeout")
    assert result.ended_by == "kill"
    assert result.lost_names == ("x",)
    assert result.error is not None
    assert any("File" in line for line in result.error.traceback)  # where it hung
    following = runs_in_step(session, kept=False)
    assert following.kernel_epoch == result.kernel_epoch + 1
    assert "x" in following.notes[0]


@row("`input()` without `on_input`")
@pytest.mark.shared_session
def test_input_without_an_answer(session: Session) -> None:
    session.execute("x = 1")
    assert verdict(session.execute("input('? ')")) == ("error", 1, "kept", None, None)
    runs_in_step(session, kept=True)


@row("`exit()`, `os._exit(3)`, segmentation fault")
@pytest.mark.parametrize(
    ("code", "exit_code", "cause"),
    [
        ("exit()", 1, "exited"),
        ("import os; os._exit(3)", 3, "exited"),
        ("import ctypes; ctypes.string_at(0)", 139, "crashed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "killed"),
    ],
    ids=["exit()", "os._exit(3)", "segmentation fault", "SIGKILL"],
)
def test_the_kernel_dies(session: Session, code: str, exit_code: int, cause: str) -> None:
    session.execute("x = 1")
    result = session.execute(f"print('before', flush=True); {code}")
    assert verdict(result) == ("error", exit_code, "lost", None, cause)
    assert result.stdout == "before\n"
    assert "x" in result.lost_names
    following = runs_in_step(session, kept=False)
    assert following.notes


@row("out of memory, where a limit is set (always in containers)")
def test_out_of_memory(tight_session: Session) -> None:
    tight_session.execute("x = 1")
    result = tight_session.execute("print('before')\ny = bytearray(b'x') * 500_000_000")
    assert verdict(result) == ("error", 137, "lost", None, "oom")
    assert result.stdout == "before\n"
    assert result.lost_names == ("x",)
    assert any("64 MiB" in note for note in result.notes)
    assert result.diagnosis is not None
    assert "64 MiB" in result.diagnosis.message
    runs_in_step(tight_session, kept=False)


@row("300 processes at once, endless output, 1 GB line, a device without space")
@pytest.mark.parametrize(
    ("code", "timeout", "status"),
    named_cases(
        {
            "300 processes": ("!for i in $(seq 300); do sleep 600 & done; wait", 1.0, "error"),
            "endless output": ("while True: print('x' * 1000)", 1.0, "error"),
            "100 MB line": ("print('x' * 10**8)", 120.0, "ok"),
            "1 GB line": ("print('x' * 10**9)", 120.0, "ok"),
            "no space": ("open('/dev/full', 'w').write('x' * 10**6)", 30.0, "error"),
        },
        {"300 processes", "endless output", "100 MB line", "no space"},
    ),
)
def test_too_much_of_something(session: Session, code: str, timeout: float, status: str) -> None:
    session.execute("x = 1")
    result = session.execute(code, timeout=timeout)
    assert (result.status, result.state) == (status, "kept")
    assert len(result.stdout) < 2 * 1024 * 1024
    runs_in_step(session, kept=True)


@row("the container is removed, or the engine stops")
@needs_engine
@pytest.mark.nightly
def test_the_container_is_removed(tmp_path: Path) -> None:
    with Executor("container", workspace=tmp_path, config=KINDS["container"]) as executor:
        session = executor.session()
        session.execute("x = 1")
        cell = RunningCell(session, "import time; print('before', flush=True); time.sleep(600)", timeout=600)
        with Engine() as engine:
            (container,) = engine.list_containers(f"{WORKSPACE}={tmp_path}")
            engine.remove(container.id)
        result = cell.result()
        assert verdict(result) == ("error", 137, "lost", None, "killed")
        assert result.stdout == "before\n"
        runs_in_step(session, kept=False)


@row("the server is killed (SIGKILL) during a cell in a container")
@needs_engine
@pytest.mark.nightly
def test_the_server_is_killed_mid_cell(tmp_path: Path) -> None:
    killed_server(tmp_path)
    with Executor("container", workspace=tmp_path, config=KINDS["container"]) as executor:
        session = executor.session("a")
        progress = session.wait_for(session.executions()[-1])
        assert progress.result is not None
        assert verdict(progress.result) == ("ok", 0, "kept", None, None)
        assert progress.result.text == "".join(f"{n}\n" for n in range(40)) + "42"
        runs_in_step(session, kept=True)


LOCAL_SERVER = """
import sys
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as executor:
    session = executor.session("a")
    session.execute("x = 1")
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    session.execute(code, timeout=700, on_output=lambda output: print(output.text, flush=True))
"""


@row("the server gets SIGTERM during a cell in a container")
@needs_engine
@pytest.mark.parametrize("options", named_cases({"alone": ((),), "--keep-kernels": (("--keep-kernels",),)}, {"alone"}))
def test_the_server_gets_sigterm(options: tuple[str, ...], tmp_path: Path) -> None:
    shared = ("--isolation", "container", "--image", MINIMAL, "--workspace", str(tmp_path / "ws"))
    with serving(tmp_path, *shared, *options) as server:
        with server.client("auto", x_kernelexec_agent="a") as agent:
            agent.text("execute_code", code="x = 41")
            agent.call("execute_code", code="import time; open('begun', 'w').close(); time.sleep(3); x += 1", wait=0.5)
            until(lambda: any((tmp_path / "ws").rglob("begun")))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(BOUND) == 0
    with serving(tmp_path, *shared) as server, server.client("auto", x_kernelexec_agent="a") as agent:
        following = agent.call("execute_code", code="print('x' in globals())")
        assert text_of(following).endswith(f"{bool(options)}\n")
        assert record_of(following)["state"] == ("kept" if options else "new")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(BOUND) == 0


@row("a session is opened again, or a name is mistyped")
def test_a_session_that_may_be_taken_for_an_earlier_one(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("analysis")
        session.execute("x = 1")
        session.close()
        again = executor.session("analysis").execute("'x' in globals()")
        assert (again.text, again.state, again.lost_names) == ("False", "new", ("x",))
        assert executor.session("analysys").execute("1").state == "new"
        assert executor.session("plots").execute("1").state == "kept"


@row("the server is killed (SIGKILL) during a local cell")
def test_the_server_of_a_local_kernel_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LOCAL_SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        kernel = Path("/proc", server.stdout.readline().strip())
        assert kernel.exists()
        server.kill()
    until(lambda: not kernel.exists())
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        first = session.execute("print('x' in globals())")
        assert (first.text, first.state) == ("False\n", "lost")
        runs_in_step(session, kept=False)


@row("an MCP client over HTTP disconnects during a cell")
def test_the_client_goes_away_mid_cell(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session()
            begun = asyncio.Event()
            code = "import os, time\nx = 1\nprint('begun', flush=True)\n"
            code += "while not os.path.exists('go'): time.sleep(0.01)\nx = 2\nx"
            client = asyncio.ensure_future(session.execute(code, on_output=lambda _: begun.set()))
            await begun.wait()
            client.cancel()
            with pytest.raises(asyncio.CancelledError):
                await client
            (running,) = session.executions()
            (session.workspace / "go").touch()
            progress = await session.wait_for(running)
            assert progress.result is not None
            assert (progress.result.status, progress.result.text) == ("ok", "begun\n2")
            assert (await session.execute("x")).text == "2"

    asyncio.run(run())
