"""A fork server that starts before the configuration is known: taken where it is as a later one, and ended elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from kernelexec import Executor
from kernelexec.cli import starts_kernel_here
from kernelexec.provisioning.host import fork_server_process
from kernelexec.provisioning.host.fork_server_process import discard_early, start_early, take_early
from kernelexec.provisioning.launch import LOADER_VARIABLES
from tests.support.command_line import COMMAND, environment
from tests.support.fork_servers import fork_servers, is_fork_server
from tests.support.night import named_cases
from tests.support.pace import BOUND, until_equal
from tests.support.preloading import preloaded_session

#: The tests look at the processes themselves.
OWN_FORK_SERVERS = True


def own_servers() -> list[psutil.Process]:
    return fork_servers(psutil.Process())


@pytest.fixture(autouse=True)
def started_early(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in LOADER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARLY_SECRET_TOKEN", "not for kernels")
    monkeypatch.setenv("EARLY_PLAIN", "for kernels")
    start_early()
    yield
    discard_early()
    until_equal(own_servers, [])


def test_an_executor_takes_it_and_kernels_have_their_own_environment(tmp_path: Path) -> None:
    (server,) = own_servers()
    with Executor("local", workspace=tmp_path, config={"preload": ()}) as executor:
        session = executor.session()
        session.execute("import os; from pathlib import Path")
        assert session.execute("os.getppid()").text == str(server.pid)
        assert session.execute("os.environ['EARLY_PLAIN'], 'EARLY_SECRET_TOKEN' in os.environ").text == "('for kernels', False)"
        assert session.execute("b'EARLY' in Path('/proc/self/environ').read_bytes()").text == "False"
        assert b"EARLY" not in Path(f"/proc/{server.pid}/environ").read_bytes()
    assert not server.is_running()


def test_an_early_fork_server_imports_the_preloaded_modules(tmp_path: Path) -> None:
    (server,) = own_servers()
    with Executor("local", workspace=tmp_path, config={"preload": ("wave",)}) as executor:
        session = executor.session()
        session.execute("import sys")
        assert session.execute("'wave' in sys.modules").text == "False"  # it waits for its first idle moment
        assert session.execute("import os; os.getppid()").text == str(server.pid)
        following = preloaded_session(executor, "wave")
        assert following.execute("import os; os.getppid()").text == str(server.pid)


def test_another_interpreter_or_another_start_ends_it() -> None:
    (server,) = own_servers()
    assert take_early("/usr/bin/python3", os.environ) is None
    assert not server.is_running()
    start_early()
    (server,) = own_servers()
    assert take_early(sys.executable, {**os.environ, "PYTHONHASHSEED": "0"}) is None
    assert not server.is_running()
    assert take_early(sys.executable, os.environ) is None


def test_one_that_has_ended_is_not_taken() -> None:
    (server,) = own_servers()
    server.kill()
    server.wait(BOUND)
    assert take_early(sys.executable, os.environ) is None
    assert fork_server_process._early == []


def test_with_search_paths_in_the_environment_none_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    discard_early()
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    start_early()
    assert own_servers() == []


@pytest.mark.parametrize(
    "line",
    [
        "exec 1+1 --isolation local",
        "exec --isolation=host 1+1",
        "run a.ipynb --isolation local",
        "repl --isolation local",
        "exec 1+1 --isolation container --isolation local",
    ],
)
def test_a_command_line_starts_a_kernel_here(line: str) -> None:
    assert starts_kernel_here(line.split(), {})


@pytest.mark.parametrize(
    "line",
    [
        "exec 1+1",
        "exec 1+1 --isolation container",
        "exec 1+1 --isolation",
        "exec --isolation local --help",
        "doctor --isolation local",
        "",
    ],
)
def test_a_command_line_starts_none_or_perhaps_none_here(line: str) -> None:
    assert not starts_kernel_here(line.split(), {})


def test_the_environment_says_it_unless_the_command_line_does() -> None:
    local = {"KERNELEXEC_ISOLATION": "local"}
    assert starts_kernel_here(["exec", "1"], local)
    assert not starts_kernel_here(["exec", "1", "--isolation", "container"], local)


WRONG = {
    "an option is wrong": ("exec", "1", "--isolation", "local", "--no-such-option"),
    "another interpreter is configured": ("exec", "1", "--isolation", "local", "--config", "python.yaml"),
    "the fork server is switched off": ("exec", "1", "--isolation", "local", "--config", "none.yaml"),
}


@pytest.mark.parametrize(
    "words",
    named_cases({name: (words,) for name, words in WRONG.items()}, {"an option is wrong", "another interpreter is configured"}),
)
def test_a_command_leaves_none_behind(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "python.yaml").write_text("python: /no/such/python\n")
    (tmp_path / "none.yaml").write_text("fork_server: false\n")
    mark = str(os.getpid())
    subprocess.run([COMMAND, *words], cwd=tmp_path, env=environment(PYTHONEARLY=mark), check=False, timeout=BOUND)
    until_equal(lambda: [each for each in psutil.process_iter() if is_marked(each, mark) and is_fork_server(each)], [])


def is_marked(process: psutil.Process, value: str) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return str(process.environ().get("PYTHONEARLY")) == value
    return False


def test_a_killed_command_leaves_none_behind(tmp_path: Path) -> None:
    words = [COMMAND, "exec", "import time; time.sleep(600)", "--isolation", "local"]
    command = subprocess.Popen(words, cwd=tmp_path, env=environment())
    servers: list[psutil.Process] = []
    while not servers:
        servers = fork_servers(psutil.Process(command.pid))
        assert command.poll() is None
    command.send_signal(signal.SIGKILL)
    command.wait(BOUND)
    assert psutil.wait_procs(servers, BOUND)[1] == []
