"""What becomes of kernels of other languages when their cells, they, or their owner come to an end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, Session
from kernelexec.provisioning.provisioners import container
from tests.conftest import EVERY_KIND
from tests.contract.session.test_commands import gone
from tests.support.engine import needs_engine
from tests.support.kernelspecs import BASH, settings, write, write_all
from tests.support.night import at_night, named_cases
from tests.support.pace import RunningCell, slow, until
from tests.support.remains import marked_processes

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ()
HANGS = {"a loop": "while (true) {}", "an await": "await new Promise(() => {})"}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    directory = tmp_path_factory.mktemp("jupyter")
    write_all(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(directory))
        patch.setenv("JUPYTER_DATA_DIR", str(directory / "user"))
        yield


@pytest.fixture(scope="module", params=EVERY_KIND)
def executor(request: pytest.FixtureRequest, specs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    location, config = tmp_path_factory.mktemp("workspaces"), settings(request.param) | {"budgets": {"grace": slow(2)}}
    with Executor(isolation=request.param, workspace=location, config=config) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(executor: Executor) -> Session:
    """One session whose kernels the tests take as they find them: some of these need seconds to start."""
    return executor.session("shared")


def test_bash_over_its_timeout_is_interrupted_and_keeps_its_state(shared: Session) -> None:
    epoch = shared.execute("x=1", language="bash").kernel_epoch
    result = shared.execute("echo before; sleep 600", language="bash", timeout=slow(3))
    assert (result.status, result.exit_code, result.interrupted, result.ended_by) == ("error", 124, "timeout", "signal")
    assert (result.state, result.cause, result.stdout.split()[0]) == ("kept", None, "before")
    following = shared.execute("echo $x", language="bash")
    assert (following.text, following.state, following.kernel_epoch) == ("1\n", "kept", epoch)


@pytest.mark.parametrize("code", named_cases(HANGS, {"a loop"}))
def test_typescript_over_its_timeout_loses_its_state_and_says_so(shared: Session, code: str) -> None:
    shared.execute("x = 1")
    epoch = shared.execute("globalThis.x = 1", language="ts").kernel_epoch
    result = shared.execute(f"console.log('before'); {code}", language="ts", timeout=slow(3))
    assert (result.status, result.exit_code, result.interrupted) == ("error", 124, "timeout")
    assert (result.state, result.cause, result.stdout) == ("lost", "timeout", "before\n")
    following = shared.execute("typeof x", language="ts")
    assert (following.text, following.state, following.kernel_epoch) == ('"undefined"', "kept", epoch + 1)
    assert "the one before ended (timeout)" in following.notes[0]
    assert shared.execute("x").text == "1"


def test_a_cell_that_is_interrupted_on_request_says_so(shared: Session) -> None:
    # bash loses a Ctrl+C that arrives while it starts a program after the output, and bash_kernel sends only one: none starts.
    running = shared.execute("sleep 60 & echo begun; wait", language="bash", wait=0.01)
    assert running.status == "running"
    while not shared.wait_for(running.execution_id, wait=0.05).text:
        pass
    result = shared.interrupt()
    assert result is not None
    assert (result.interrupted, result.exit_code, result.state, result.language) == ("request", 130, "kept", "bash")


def test_a_kernel_that_wants_a_message_gets_one(shared: Session) -> None:
    shared.execute("x = 1", language="polite")
    result = shared.execute("import time; time.sleep(600)", language="polite", timeout=slow(2))
    assert (result.interrupted, result.ended_by, result.state) == ("timeout", "interrupt", "kept")
    assert shared.execute("x", language="polite").text == "1"


TS_WAITS = """
const fs = await import("node:fs");
while (!fs.existsSync("go")) await new Promise((go) => setTimeout(go, 50));
"""
#: They die once their output has been heard.
DEATHS = {
    "bash": ("echo before; until [ -e go ]; do sleep 0.05; done; kill -9 $PPID", "killed", 137),
    "typescript": (f"console.log('before');{TS_WAITS}Deno.exit(3)", "exited", 3),
}


@pytest.mark.parametrize(("language", "case"), DEATHS.items(), ids=DEATHS)
def test_a_kernel_that_dies_is_a_result_with_its_cause(shared: Session, language: str, case: tuple[str, str, int]) -> None:
    code, cause, exit_code = case
    epoch = shared.execute("1", language=language).kernel_epoch
    shared.execute("x = 1")
    (shared.workspace / "go").unlink(missing_ok=True)
    cell = RunningCell(shared, code, language=language)
    (shared.workspace / "go").touch()
    result = cell.result()
    assert (result.status, result.state, result.cause, result.exit_code) == ("error", "lost", cause, exit_code)
    assert (result.stdout, result.kernel_epoch) == ("before\n", epoch)
    following = shared.execute("1", language=language)
    assert (following.state, following.kernel_epoch) == ("kept", epoch + 1)
    assert following.notes[0].startswith(f"Ran in a new kernel (epoch {epoch + 1}): the one before ended ({cause}).")
    assert (shared.execute("x").text, shared.kernel_epoch) == ("1", 1)


@pytest.mark.parametrize("code", ["kill -9 $$", *at_night("exit 3")])
def test_the_state_is_unknown_after_the_loss_of_a_kernels_program(shared: Session, code: str) -> None:
    shared.execute("x=1", language="bash")
    result = shared.execute(code, language="bash")
    assert result.state == "unknown"
    assert "A program that the kernel had started before it served has ended" in result.notes[-1]
    following = shared.execute("echo ${x-none}", language="bash")
    assert (following.text, following.state) == ("none\n", "kept")


@needs_engine
def test_programs_that_cannot_be_seen_are_not_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container.ContainerKernelProvisioner, "guard_pid", None)
    with Executor("container", workspace=tmp_path, config=settings("container")) as executor:
        session = executor.session()
        result = session.execute("echo 1", language="bash")
        assert (result.text, result.status, result.state) == ("1\n", "ok", "unknown")
        assert result.notes == ("The kernel answers; the programs that it runs cannot be seen from here.",)


OWNER = """
import sys
import time
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as executor:
    session = executor.session()
    print(session.execute("Deno.pid", language="ts").text, flush=True)
    child = "new Deno.Command('setsid', {args: ['sleep', '600']}).spawn().pid"
    print(session.execute(child, language="ts").text, flush=True)
    pids = session.execute("setsid sleep 600 & echo pids $$ $PPID $!", language="bash").text
    print(pids.partition("pids")[2].strip(), flush=True)
    session.execute("while (true) {}", language="ts")
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, *at_night(signal.SIGTERM)])
def test_a_killed_owner_leaves_no_kernel_of_another_language(specs: None, tmp_path: Path, signum: int) -> None:
    before = marked_processes()
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as owner:
        try:
            assert owner.stdout is not None
            pids = [int(word) for _ in range(3) for word in owner.stdout.readline().split()]
            assert len(pids) == 5
            owner.send_signal(signum)
            owner.wait()
            assert all(gone(pid) for pid in pids)
            until(lambda: marked_processes().keys() <= before.keys())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


def test_a_cell_that_kills_the_guard_ends_its_own_kernel(shared: Session) -> None:
    epoch = shared.execute("1", language="ts").kernel_epoch
    result = shared.execute("Deno.kill(Deno.ppid, 'SIGKILL'); await new Promise(() => {})", language="ts")
    assert (result.status, result.state, result.cause, result.exit_code) == ("error", "lost", "killed", 137)
    assert shared.execute("1", language="ts").kernel_epoch == epoch + 1


#: It answers the first question after the cell, and dies of the second.
DIES_ONCE_IT_HAS_ANSWERED = """
import os
handlers = get_ipython().kernel.shell_handlers
answer, questions = handlers["kernel_info_request"], []

async def answer_once(*arguments):
    questions.append(arguments)
    await answer(*arguments) if len(questions) == 1 else os.kill(os.getpid(), 9)

handlers["kernel_info_request"] = answer_once
"""


def test_a_kernel_that_dies_once_its_cell_was_answered_is_not_called_kept(shared: Session) -> None:
    epoch = shared.execute("1", language="polite").kernel_epoch
    result = shared.execute(DIES_ONCE_IT_HAS_ANSWERED, language="polite")
    assert (result.status, result.state, result.cause, result.exit_code) == ("error", "lost", "killed", 137)
    assert shared.execute("1", language="polite").kernel_epoch == epoch + 1


def test_a_guard_that_is_killed_takes_its_kernel_along(specs: None, tmp_path: Path) -> None:
    with Executor(isolation="local", workspace=tmp_path) as executor:
        kill_guard(executor.session())


def kill_guard(session: Session) -> None:
    pid = int(session.execute("Deno.pid", language="ts").text)
    guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert gone(pid)
    kernel = session._target._kernels._supervisors["typescript"].kernel
    assert kernel is not None
    until(lambda: not kernel.alive)
    result = session.execute("1", language="ts")
    assert (result.status, result.kernel_epoch, result.state) == ("ok", 2, "lost")


def test_the_command_of_the_tests_is_bash_kernels_own() -> None:
    code = "import json, bash_kernel.install; print(json.dumps(bash_kernel.install.kernel_json['argv']))"
    answer = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=True)
    assert json.loads(answer.stdout) == BASH


def test_a_cell_whose_kernel_starts_is_cancelled_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    write(tmp_path, "slow", ["sleep", "600"], "slow")
    with Executor(isolation="local", workspace=tmp_path / "w") as executor:
        session = executor.session()
        running = session.execute("1", language="slow", wait=0.01)
        until(lambda: any("sleep 600" in command for command in marked_processes().values()))
        ended = session.interrupt(running.execution_id)
        assert ended is not None
        assert (ended.status, ended.notes) == ("aborted", ("Cancelled while its kernel started.",))
        assert session.execute("1 + 1").text == "2"
