"""Kernels that are reached by a relay over the engine's own stream: no port, no network, and no cut is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec import ExecutionResult, Executor, KernelStartFailed, Session
from kernelexec.docker.client import ContainerStatus, Engine
from kernelexec.docker.labels import SESSION, WORKSPACE
from kernelexec.provisioning.runtime import kernel_directory
from tests.support.engine import IMAGE, needs_engine
from tests.support.language_image import language_image
from tests.support.low_memory import MIB
from tests.support.pace import BOUND, slow, until
from tests.support.remote_engine import RemoteEngine, remote_engine

pytestmark = needs_engine

OPTIONS: dict[str, object] = {"container": {"image": IMAGE}}
COUNTS = "for n in range(30):\n    print(n, flush=True)\n    time.sleep(0.1)"


@pytest.fixture(scope="module")
def engine() -> Iterator[RemoteEngine]:
    with remote_engine() as opened:
        yield opened


@pytest.fixture(scope="module")
def executor(engine: RemoteEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with Executor("container", workspace=tmp_path_factory.mktemp("workspaces"), config=OPTIONS) as opened:
        yield opened


def container_of(session: Session) -> ContainerStatus:
    with Engine() as engine:
        named = engine.list_containers(f"{SESSION}={session.name}")
        (actual,) = [entry for entry in named if entry.labels[WORKSPACE] == str(session.workspace.parent)]
        return engine.inspect_container(actual.id)


def relays(session: Session) -> list[psutil.Process]:
    """The programs that the engine runs for the relay of a session, and the process in which the relay goes on."""
    kernels = psutil.Process(container_of(session).pid).parent().children(recursive=True)
    return [process for process in kernels if "--relay" in process.cmdline()]


def result_of(session: Session, running: ExecutionResult) -> ExecutionResult:
    progress = session.wait_for(running.execution_id, wait=BOUND)
    assert progress.result is not None
    return progress.result


def test_a_relayed_container_has_no_network_no_port_and_a_private_directory(session: Session) -> None:
    session.execute("1")
    with Engine() as engine:
        answer = engine.api.inspect_container(container_of(session).id)
    assert list(answer["NetworkSettings"]["Networks"]) == ["none"]
    assert not any(answer["NetworkSettings"]["Ports"].values())
    assert session.connection_file is not None
    directory = str(Path(session.connection_file).parent)
    assert directory not in [mount["Source"] for mount in answer["Mounts"]]
    listed = f"import os; print(oct(os.stat({directory!r}).st_mode), *sorted(os.listdir({directory!r})))"
    assert session.execute(listed).stdout.startswith("0o40700 connection.json owner ready relay s-1 ")


def test_output_of_any_size_and_values_come_through(session: Session) -> None:
    result = session.execute("print('x' * 10_000_000)")
    assert result.ok
    assert len(result.stdout) > MIB
    session["data"] = b"y" * (20 * MIB)
    assert len(session["data"]) == 20 * MIB


def test_a_busy_channel_holds_no_other_up(session: Session) -> None:
    flood = session.execute("while True: print('x' * 100_000)", timeout=2)
    assert (flood.interrupted, flood.state) == ("timeout", "kept")
    assert session.execute("6 * 7").text == "42"


def test_an_interrupt_and_a_death_are_as_elsewhere(session: Session) -> None:
    session.execute("x = 1")
    stuck = session.execute("import time\nwhile True: time.sleep(0.1)", timeout=1)
    assert (stuck.interrupted, stuck.state) == ("timeout", "kept")
    died = session.execute("import os; os._exit(3)")
    assert (died.state, died.cause, died.exit_code) == ("lost", "exited", 3)
    assert session.execute("2").state == "kept"


def test_a_killed_program_is_replaced_and_the_cell_goes_on(session: Session) -> None:
    session.execute("import time; x = 1")
    running = session.execute(COUNTS, wait=0.5)
    (program,) = [
        process for process in relays(session) if "--relay" not in process.parent().cmdline()
    ]  # the engine's own child
    program.kill()
    result = result_of(session, running)
    assert (result.stdout.split(), result.state) == ([str(n) for n in range(30)], "kept")


def test_a_cut_stream_is_taken_up(session: Session, engine: RemoteEngine) -> None:
    session.execute("import time; x = 1")
    running = session.execute(COUNTS, wait=0.1)
    for _ in range(5):
        time.sleep(0.3)  # in the middle of it
        engine.cut()
    result = result_of(session, running)
    assert (result.stdout.split(), result.state) == ([str(n) for n in range(30)], "kept")
    assert session.execute("x").text == "1"


def test_a_kernel_outlives_the_time_in_which_it_waits_for_its_owner(
    engine: RemoteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = slow(2)
    monkeypatch.setattr(kernel_directory, "RELAY_SECONDS", patience)
    config = {"container": {"image": IMAGE, "orphan_seconds": 0}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        time.sleep(2 * patience)  # it would have ended by then
        result = session.execute("x")
        assert (result.text, result.kernel_epoch) == ("1", 1)


def test_a_killed_relay_ends_the_kernel(session: Session) -> None:
    session.execute("x = 1")
    for process in relays(session):
        process.kill()
    result = session.execute("x")
    assert result.state == "lost"
    assert session.execute("1").state == "kept"


def test_a_jupyter_client_uses_the_sockets_of_this_machine(session: Session) -> None:
    session.execute("x = 41")
    client = BlockingKernelClient(connection_file=str(session.connection_file))
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=BOUND)
        reply = client.execute_interactive("x + 1", timeout=BOUND, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()


def test_another_language_is_refused_with_the_ways_out(engine: RemoteEngine, tmp_path: Path) -> None:
    with Executor("container", workspace=tmp_path, config={"container": {"image": language_image(IMAGE)}}) as executor:
        session = executor.session()
        session.execute("x = 1")
        with pytest.raises(KernelStartFailed, match=r"'polite' cannot be reached: .*Run polite by execute_command"):
            session.execute("1", language="polite")
        assert session.execute("x").text == "1"


def test_a_kernel_that_does_not_start_says_why_and_leaves_nothing(engine: RemoteEngine, tmp_path: Path) -> None:
    config = {"container": {"image": IMAGE, "python": "/bin/false"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        with pytest.raises(KernelStartFailed):
            executor.session("a").execute("1")
        with Engine() as opened:
            assert opened.list_containers(f"{WORKSPACE}={tmp_path}") == []


OWNER = """
import json, sys, time
from kernelexec import Executor
from kernelexec.provisioning.runtime import kernel_directory
kernel_directory.RELAY_SECONDS = float(sys.argv[3])
with Executor("container", workspace=sys.argv[1], config=json.loads(sys.argv[2])) as executor:
    executor.session("a").execute("x = 1")
    executor.session("a").execute("import time; time.sleep(3); x += 1", wait=0.5)
    print("ready", flush=True)
    time.sleep(600)
"""


def kill_owner(workspace: Path, config: dict[str, object], patience: float) -> None:
    command = [sys.executable, "-c", OWNER, str(workspace), json.dumps(config), str(patience)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        owner.send_signal(signal.SIGKILL)


def test_a_kernel_that_is_not_adopted_ends_after_its_owner(engine: RemoteEngine, tmp_path: Path) -> None:
    kill_owner(tmp_path, {"container": {"image": IMAGE, "orphan_seconds": 0}}, slow(2))
    with Engine() as opened:
        until(lambda: not any(each.running for each in opened.list_containers(f"{WORKSPACE}={tmp_path}")))
    with Executor("container", workspace=tmp_path, config=OPTIONS), Engine() as opened:
        until(lambda: not opened.list_containers(f"{WORKSPACE}={tmp_path}"))


def test_the_next_executor_goes_on_with_it(engine: RemoteEngine, tmp_path: Path) -> None:
    kill_owner(tmp_path, OPTIONS, 60.0)
    with Executor("container", workspace=tmp_path, config=OPTIONS) as executor:
        assert executor.sessions() == ("a",)
        assert executor.session("a").execute("x").text == "2"


def threads() -> int:
    return sum(thread.name in ("relay of a kernel", "stdin of a command") for thread in threading.enumerate())


def test_the_end_of_a_relayed_session_leaves_no_socket_and_no_thread(
    executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    before = threads()
    session = executor.session("ended")
    session.execute("1")
    directory = Path(str(session.connection_file)).parent
    assert (directory / "s-1").is_socket()
    assert threads() == before + 2
    session.close()
    until(lambda: not directory.exists() and threads() == before)
    assert caplog.records == []
