"""Kernels that are forked: as quick as a fork, as separate as processes, and as surely ended as any."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from kernelexec import Executor, Session
from kernelexec.provisioning.host.fork_servers import ForkedProcess, ForkServer, ForkServerUnavailable
from kernelexec.provisioning.runtime.processes import ProcessMarker
from tests.support.fork_servers import fork_servers
from tests.support.pace import BOUND, until, until_equal
from tests.support.preloading import preloaded_session
from tests.support.remains import marked_processes

#: The tests look at the processes themselves.
OWN_FORK_SERVERS = True

#: What fork servers import by default.
LIBRARIES = ("numpy", "pandas", "matplotlib.pyplot")


@pytest.fixture(scope="module")
def preloading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """One for the module: its fork server imports the libraries once."""
    workspace = tmp_path_factory.mktemp("preloading")
    with Executor("local", workspace=workspace, config={"preload": LIBRARIES, "checkpoints": "named"}) as opened:
        yield opened


@pytest.fixture
def executor(preloading: Executor) -> Iterator[Executor]:
    """That one, without sessions at the begin and at the end of a test."""
    yield preloading
    for name in preloading.sessions():
        preloading.close_session(name)


def server_of(session: Session) -> psutil.Process:
    """The parent of a session's kernel."""
    return psutil.Process(int(session.execute("import os; os.getppid()").text))


def is_own_server(process: psutil.Process) -> bool:
    """Whether a process is a fork server of the tests' own process."""
    return process in fork_servers(psutil.Process())


def test_kernels_are_children_of_one_server_and_lead_sessions_of_their_own(executor: Executor) -> None:
    sessions = [executor.session(name) for name in "abc"]
    servers = {server_of(session).pid for session in sessions}
    assert [is_own_server(psutil.Process(pid)) for pid in servers] == [True]
    for session in sessions:
        assert session.execute("os.getpid() == os.getsid(0) == os.getpgid(0)").text == "True"


def test_three_libraries_are_preloaded_by_default() -> None:
    code = "from kernelexec.config import Config; print(*Config().preload)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(LIBRARIES)


def test_preloaded_modules_are_loaded_without_variables(executor: Executor) -> None:
    server = server_of(executor.session("first"))
    session = preloaded_session(executor, *LIBRARIES)
    assert server_of(session) == server
    assert [variable.name for variable in session.variables()] == ["os", "sys"]
    assert session.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]);").images


OPTIONS = """
import matplotlib.pyplot, numpy, pandas, warnings
warnings.simplefilter("ignore")
options = {name: str(pandas.get_option(name)).lower() for name in pandas._config.config._registered_options}
[options, numpy.get_printoptions(), numpy.geterr(), sorted(matplotlib.rcParams.items()), matplotlib.is_interactive()]
"""


def test_libraries_have_the_options_that_they_have_when_a_cell_imports_them(executor: Executor, tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path / "other") as other:
        expected = other.session().execute(OPTIONS)
    actual = preloaded_session(executor, *LIBRARIES).execute(OPTIONS)
    assert expected.ok
    assert actual.text == expected.text


def test_a_module_that_looks_for_the_shell_while_it_is_imported_finds_a_kernels(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "looking.py").write_text(
        "from ipykernel.zmqshell import ZMQInteractiveShell\n"
        "shell = get_ipython()\n"
        "found = isinstance(shell, ZMQInteractiveShell), hasattr(shell, 'kernel')"
    )
    config = {"preload": ["looking"], "environment": {"set": {"PYTHONPATH": str(tmp_path / "modules")}}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        session = preloaded_session(executor, "looking")
        assert session.execute("import looking; looking.found").text == "(True, True)"
        assert session.execute("get_ipython().kernel is not None").text == "True"


DIFFERENT = {
    "random": "import random; random.random()",
    "numpy": "import numpy; numpy.random.random()",
    "uuid": "import uuid; uuid.uuid4()",
    "temporary names": "import tempfile; tempfile.mktemp()",
    "process": "import os; os.getpid()",
}


@pytest.mark.parametrize("code", DIFFERENT.values(), ids=DIFFERENT)
def test_two_kernels_draw_nothing_alike(executor: Executor, code: str) -> None:
    item, other = (executor.session(name).execute(code).text for name in ("one", "other"))
    assert item != other


def test_two_kernels_share_no_state(executor: Executor) -> None:
    item = executor.session("one")
    item.execute("x = 1\nimport os, json, builtins\nos.environ['MINE'] = '1'\njson.mine = builtins.mine = 1\nos.chdir('/')")
    other = executor.session("other")
    code = (
        "import os, json, builtins\n('x' in globals(), 'MINE' in os.environ, hasattr(json, 'mine'), hasattr(builtins, 'mine'))"
    )
    assert other.execute(code).text == "(False, False, False, False)"
    assert other.execute("os.getcwd()").text == repr(str(other.workspace))
    assert other.execute("%history").text == f"{code}\nos.getcwd()\n%history\n"


LINKS = """
def links(pid):
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:  # that of the directory itself
            pass
    return {link for link in found if not link.startswith("anon_inode:") and link != os.devnull}
"""


def test_a_kernel_holds_no_descriptor_of_its_server(executor: Executor) -> None:
    session = executor.session()
    server = server_of(session)
    held = session.execute(f"{LINKS}\nlinks(os.getpid()) & links({server.pid})").text
    assert held == "set()"


@pytest.mark.parametrize(
    ("code", "exit_code", "cause"),
    [("import os; os._exit(7)", 7, "exited"), ("import os; os.kill(os.getpid(), 9)", 137, "killed")],
)
def test_how_a_kernel_ended_is_known(executor: Executor, code: str, exit_code: int, cause: str) -> None:
    session = executor.session()
    result = session.execute(f"x = 1\n{code}")
    assert (result.exit_code, result.cause, result.state) == (exit_code, cause, "lost")
    assert session.execute("'x' in globals()").text == "False"


def test_kernels_outlive_their_server_and_the_next_ones_have_another(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"checkpoints": "named"}) as executor:
        item = executor.session("one")
        server = server_of(item)
        item.execute("x = 1")
        server.kill()
        server.wait(BOUND)
        assert item.execute("x").text == "1"
        other = executor.session("other")
        assert is_own_server(server_of(other))
        result = item.execute("import os; os._exit(3)")
        assert (result.status, result.state) == ("error", "lost")
        assert server_of(item) == server_of(other)


def test_nothing_is_left_when_the_executor_is_left(tmp_path: Path) -> None:
    others = set(marked_processes())
    with Executor("local", workspace=tmp_path) as opened:
        server = server_of(opened.session())
        born = set(marked_processes()) - others
        assert born
    assert not server.is_running()
    until_equal(lambda: born & set(marked_processes()), set())


OWNER = """
import sys
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={"preload": ()}) as executor:
    print(executor.session().execute("import os; (os.getpid(), os.getppid())").text, flush=True)
    sys.stdin.read()
"""


def test_an_owner_that_is_killed_leaves_neither_kernel_nor_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        processes = [psutil.Process(pid) for pid in eval(owner.stdout.readline())]  # noqa: S307 - two numbers
        owner.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(processes, BOUND)
    assert (len(gone), alive) == (2, [])


def test_a_module_that_has_threads_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    config = {"preload": ["threaded", "wave"], "environment": {"set": {"PYTHONPATH": str(tmp_path / "modules")}}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as opened:
        first = server_of(opened.session("first"))
        if is_own_server(first):  # it may have ended by now, so that the kernel has another parent
            first.wait(BOUND)
        session = opened.session("next")
        assert is_own_server(server_of(session))
        assert session.execute("import sys; 'threaded' in sys.modules").text == "False"


def with_slow_module(tmp_path: Path, end: str = "") -> dict[str, Any]:
    """A configuration that preloads a module whose import makes ``begun``, and waits for ``go``."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "slowly.py").write_text(
        "import pathlib, threading, time\n"
        f"pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        f"{end}"
    )
    variables = {"PYTHONPATH": str(tmp_path / "modules")}
    return {"checkpoints": "named", "preload": ["slowly"], "environment": {"set": variables}}


def test_how_a_kernel_ended_is_known_although_its_server_reports_it_late(tmp_path: Path) -> None:
    config = with_slow_module(tmp_path) | {"budgets": {"grace": 0.1}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as opened:
        session = opened.session()
        until((tmp_path / "begun").exists)
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(session.execute, "import os; os._exit(7)")
            time.sleep(1)  # longer than the end of a kernel is waited for whose process lives
            (tmp_path / "go").touch()
            result = ending.result(BOUND)
    assert (result.exit_code, result.cause) == (7, "exited")


def test_a_kernel_that_is_asked_for_while_a_module_gets_threads_is_one_process(tmp_path: Path) -> None:
    config = with_slow_module(tmp_path, end="threading.Thread(target=time.sleep, args=(600,), daemon=True).start()")
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as opened:
        first = opened.session("first")
        until((tmp_path / "begun").exists)
        server = server_of(first)
        before = set(marked_processes())
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(opened.session, "next")
            time.sleep(0.5)  # so that the server has the request; one that comes later finds no server
            (tmp_path / "go").touch()
            session = opening.result(BOUND)
        assert session.execute("import os; os.getppid()").text == str(os.getpid())
        server.wait(BOUND)
        until_equal(lambda: len(set(marked_processes()) - before), 1)


def test_a_stopped_server_has_reported_every_fork(tmp_path: Path) -> None:
    async def run() -> None:
        mark = ProcessMarker()
        server = ForkServer(sys.executable, dict(os.environ), (), tmp_path / "complaints")
        await server.ready
        with (tmp_path / "stderr").open("wb") as stderr:
            arguments = [["-f", str(tmp_path / f"{number}.json")] for number in range(20)]
            asked = [
                asyncio.create_task(server.fork(each, {**os.environ, **mark.environ}, str(tmp_path), stderr))
                for each in arguments
            ]
            await asked[0]
            await server.stop()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        born = {kernel.pid for kernel in outcomes if isinstance(kernel, ForkedProcess)}
        try:
            assert {type(item) for item in outcomes} == {ForkedProcess, ForkServerUnavailable}
            assert {pid for pid in mark.marked_pids() if psutil.Process(pid).ppid() not in born} == born
        finally:
            for kernel in outcomes:
                if isinstance(kernel, ForkedProcess):
                    kernel.kill()
                    kernel.wait()
            assert mark.marked_pids() == []

    asyncio.run(run())


ANSWERS_ONCE = """#!{python}
import json, os, socket, sys
channel = socket.socket(fileno=int(sys.argv[sys.argv.index("--forkserver") + 1]))
socket.send_fds(channel, [json.dumps({{"serves": True}}).encode()], [])
channel.recv(65536)  # its settings
channel.recv(65536)  # the first request
socket.send_fds(channel, [json.dumps({{"request": 1, "pid": os.getpid()}}).encode()], [os.pidfd_open(os.getpid())])
"""


def test_answers_of_an_ended_server_are_read_despite_unread_requests(tmp_path: Path) -> None:
    async def run() -> None:
        python = tmp_path / "python"
        python.write_text(ANSWERS_ONCE.format(python=sys.executable))
        python.chmod(0o755)
        server = ForkServer(str(python), dict(os.environ), (), tmp_path / "complaints")
        await server.ready
        with (tmp_path / "stderr").open("wb") as stderr:
            asked = [asyncio.create_task(server.fork([], {}, "/", stderr)) for _ in range(2)]
            await asyncio.sleep(0)  # both are sent
            server._process.wait()  # everything has been sent, and nothing of it is read
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(item) for item in outcomes] == [ForkedProcess, ForkServerUnavailable]
        await server.stop()

    asyncio.run(run())


def test_without_a_server_kernels_are_started_and_that_is_reported(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nfor word in "$@"; do [ "$word" = --forkserver ] && exit 3; done\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with Executor("local", workspace=tmp_path, config={"python": str(python)}) as opened:
        result = opened.session().execute("import os; os.getppid()")
        assert result.text == str(os.getpid())
        assert result.notes == ("Kernels are started one by one, since none can be forked: it has ended.",)


def test_the_fork_server_can_be_switched_off(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"fork_server": False}) as opened:
        result = opened.session().execute("import os; os.getppid()")
        assert (result.text, result.notes) == (str(os.getpid()), ())
