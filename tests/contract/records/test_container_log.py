"""The log of real sessions, wherever their kernels run: written as it happens, so that nothing is lost with its writer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig, KernelStartFailed
from kernelexec.docker.client import Engine
from tests.conftest import EVERY_KIND, KINDS
from tests.support.engine import needs_engine
from tests.support.pace import until
from tests.unit.records.test_container_log import STAMP

#: A program that runs a cell which says what it has been given and then hangs, until it is killed.
OWNER = """
import sys
from kernelexec import Executor
with Executor(isolation=sys.argv[1], workspace=sys.argv[2], config=eval(sys.argv[3])) as executor:
    session = executor.session('a')
    session.execute("print('first' + ' cell')")
    session.execute_command("echo second; exit 7")
    session.execute("print('third'); print('un', end=''); import time; time.sleep(600)", timeout=600)
"""


def config(kind: str, tmp_path: Path, **more: Any) -> dict[str, Any]:
    return KINDS[kind] | {"log_dir": str(tmp_path / "logs")} | more


def read(tmp_path: Path, name: str = "a") -> list[str]:
    actual = (tmp_path / "logs" / name / "docker_container.log").read_text().splitlines()
    assert all(re.match(STAMP, line) for line in actual), actual
    return [re.sub(f"^{STAMP}", "", line) for line in actual]


def without_ids(lines: list[str]) -> list[str]:
    return [re.sub(r" [0-9a-f]{8} ", " ", line) for line in lines]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_log_holds_what_ran_and_what_came_out(kind: str, tmp_path: Path) -> None:
    with Executor(isolation=kind, workspace=tmp_path / "ws", config=config(kind, tmp_path, checkpoints="named")) as executor:
        session = executor.session("a")
        session.execute("print('first' + ' cell')")
        session.execute_command("echo second; exit 7")
        session.execute("while True: pass", timeout=0.3)
        session.execute("import os; os._exit(3)")
        session.restart()
        with pytest.raises(Exception, match="empty"):
            session.execute("")
    actual = without_ids(read(tmp_path))
    for expected in (
        "session opened: workspace .*/ws/a",
        "kernel 1 started: .*",
        "cell started: python, kernel 1, execution .*",
        re.escape("cell in | print('first' + ' cell')"),
        re.escape("cell out | first cell"),
        "cell ended: ok, exit code 0, .* s, state kept",
        "cell started: command, kernel 1, .*",
        re.escape("cell in | echo second; exit 7"),
        re.escape("cell out | second"),
        "cell ended: error, exit code 7, .*",
        "cell ended: error, exit code 124, .*, interrupted by timeout, ended by .*",
        "kernel 1 died: exited",
        "cell ended: error, exit code 3, .*, state lost, cause exited",
        "kernel 2 started in place of the one before: .*",
        "refused code: code is empty: .*",
        "session closing",
        "session closed",
    ):
        location = next((location for location, line in enumerate(actual) if re.fullmatch(expected, line)), None)
        assert location is not None, f"{expected} is not in, or not in its place in, {actual}"
        del actual[: location + 1]


@needs_engine
def test_the_log_says_which_container_it_was(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    container: Any = KINDS["container"]["container"]
    mounts = [{"source": str(tmp_path / "data")}]
    variables = {"set": {"A_TOKEN": "not to be told"}}
    value = config("container", tmp_path, container=container | {"mounts": mounts}, environment=variables)
    with Executor(workspace=tmp_path / "ws", isolation="container", config=value) as executor:
        executor.session("a")
    actual = read(tmp_path)
    started = next(line for line in actual if line.startswith("kernel 1 started"))
    assert re.fullmatch(
        r"kernel 1 started: container kernelexec-a-[0-9a-f]{8} \([0-9a-f]{12}\), image \S+, network none, "
        rf"mounts {tmp_path}/ws/a -> {tmp_path}/ws/a \(rw\), {tmp_path}/data -> {tmp_path}/data \(ro\)",
        started,
    )
    assert "not to be told" not in "".join(actual)


@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=[needs_engine, pytest.mark.nightly])])
def test_nothing_is_lost_with_an_owner_that_is_killed(kind: str, tmp_path: Path) -> None:
    container: Any = KINDS[kind].get("container", {})
    value = config(kind, tmp_path, **({"container": container | {"orphan_seconds": 0}} if container else {}))
    words = [sys.executable, "-c", OWNER, kind, str(tmp_path / "ws"), repr(value)]
    path = tmp_path / "logs" / "a" / "docker_container.log"
    with subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(Path.cwd())}) as owner:
        until(lambda: owner.poll() is not None or (path.exists() and "out | un\n" in path.read_text()))
        assert owner.poll() is None
        owner.send_signal(signal.SIGKILL)
    for name in re.findall(r"container (kernelexec-a-\S+)", path.read_text()):
        with Engine.acquire() as engine:
            engine.remove(name)
    actual = without_ids(read(tmp_path))
    for expected in ("cell out | first cell", "cell out | second", "cell out | third", "cell out | un"):
        assert expected in actual
    assert sum(line.startswith("cell ended") for line in actual) == 2


def test_output_of_a_thread_that_goes_on_is_there_too(tmp_path: Path) -> None:
    later = "import threading\ndef later():\n    go.wait()\n    print('afterwards')\ngo = threading.Event()\n"
    with Executor(isolation="local", workspace=tmp_path / "ws", config=config("local", tmp_path)) as executor:
        session = executor.session("a")
        session.execute(later + "thread = threading.Thread(target=later)\nthread.start()")
        session.execute("go.set(); thread.join()")
    assert any(re.fullmatch(r"cell [0-9a-f]{8} (late|out) \| afterwards", line) for line in read(tmp_path))


def test_a_kernel_that_does_not_start_is_there_with_its_cause(tmp_path: Path) -> None:
    value = config("local", tmp_path, python="/no/such/python")
    with (
        Executor(isolation="local", workspace=tmp_path / "ws", config=value) as executor,
        pytest.raises(KernelStartFailed),
    ):
        executor.session("a")
    actual = read(tmp_path)
    assert "kernel 1 did not start" in actual
    assert any("/no/such/python" in line for line in actual)


def test_an_unfit_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    with pytest.raises(InvalidConfig, match="no directory"):
        Executor(isolation="local", workspace=tmp_path / "ws", config=config("local", tmp_path))
    (tmp_path / "logs").unlink()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a").touch()
    with Executor(isolation="local", workspace=tmp_path / "ws", config=config("local", tmp_path)) as executor:
        with pytest.raises(InvalidConfig, match="cannot be a log"):
            executor.session("a")
        assert executor.session("b").execute("1").ok
    for value in (
        {"log_dir": tmp_path / "ws" / "b"},
        {"log_dir": tmp_path / "coding" / "logs", "work_dir": tmp_path / "coding"},
    ):
        with pytest.raises(InvalidConfig, match="where sessions work"):
            Executor(isolation="local", workspace=tmp_path / "ws", config=value)


def test_a_log_in_the_workspace_that_a_session_names_is_refused_when_it_does(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with Executor(isolation="local", workspace=tmp_path / "ws", config=config("local", tmp_path)) as executor:
        with pytest.raises(InvalidConfig, match="lies in the workspace"):
            executor.session("a", work_dir=tmp_path)
        assert executor.session("b").execute("1").ok


def test_a_disk_that_takes_no_line_fails_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: object, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kernelexec.records.log.ContainerLog._append", full)
    with Executor(isolation="local", workspace=tmp_path / "ws", config=config("local", tmp_path)) as executor:
        assert executor.session("a").execute("print(1)").text == "1\n"


def test_no_output_is_reported_where_no_hook_asks(tmp_path: Path) -> None:
    plain: list[str] = []
    asking: list[str] = []

    class Asking:
        hears_output = True

        def __call__(self, event: object) -> None:
            asking.append(type(event).__name__)

    def hook(event: object) -> None:
        plain.append(type(event).__name__)

    with Executor(isolation="local", workspace=tmp_path, hooks=[hook, Asking()]) as executor:
        executor.session("a").execute("print(1)")
    assert "OutputReceived" not in plain
    assert asking.index("CellStarted") < asking.index("OutputReceived") < asking.index("CellExecuted")
