"""The launcher inside the kernel's process: output that stays with its cell, streams, names, threads; any client may use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

import kernelexec
from kernelexec import DisplayData, Error, Session, Stream
from tests.support.pace import BOUND, slow, until

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_output_by_every_way_is_in_its_own_cell",)

#: The tests lose the state, so no cell has a checkpoint.
CHECKPOINTS = "named"
#: A cell that catches its interrupt gets no second one.
GRACE = 2.0
LAUNCHER = Path(kernelexec.__file__).parent / "launcher"

OWN_CELL = {
    "C code": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.printf(b'from C\\n'); libc.fflush(None);",
    "os.write": "import os\nos.write(1, b'from C\\n');",
    "os.system": "import os\nos.system('echo from C');",
    "a child": "import subprocess\nsubprocess.run('echo from C', shell=True);",
    "a forked worker": (
        "import multiprocessing as m\np = m.get_context('fork').Process(target=print, args=('from C',))\np.start(); p.join()"
    ),
    "a thread": "from threading import Thread\nt = Thread(target=print, args=('from C',)); t.start(); t.join()",
    "a pool of threads": "from concurrent.futures import *\nwith ThreadPoolExecutor() as p: p.submit(print, 'from C').result()",
    "a task": "import asyncio\nasync def say(): print('from C')\nawait asyncio.create_task(say())",
    "a logger": (
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(message)s')\nlogging.warning('from C')"
    ),
}


@pytest.mark.parametrize("code", OWN_CELL.values(), ids=OWN_CELL)
@pytest.mark.shared_session
def test_output_by_every_way_is_in_its_own_cell(session: Session, code: str) -> None:
    for _ in range(10):
        result = session.execute(code)
        assert (result.stdout, result.late) == ("from C\n", ())
        following = session.execute("print('next')")
        assert following.stdout == "next\n"


def test_output_of_an_earlier_cells_thread_is_in_the_running_cell(session: Session) -> None:
    code = "import threading\ngate = threading.Event()\n"
    code += "def speak():\n    gate.wait(); print('late'); display({'text/plain': 'shown late'}, raw=True)\n"
    code += "thread = threading.Thread(target=speak); thread.start(); print('now')"
    first = session.execute(code)
    assert (first.stdout, first.late) == ("now\n", ())
    second = session.execute("gate.set(); thread.join(); print('second')")
    expected = (Stream("stdout", "late\n"), DisplayData({"text/plain": "shown late"}), Stream("stdout", "second\n"))
    assert second.outputs == expected
    actual = session.wait_for(first.execution_id).result
    assert actual is not None
    assert (actual.stdout, actual.late) == ("now\n", ())


def test_an_update_by_a_thread_reaches_the_notebook_of_the_cell(session: Session) -> None:
    code = "import threading\ngate = threading.Event()\nh = display('before', display_id=True)\n"
    code += "t = threading.Thread(target=lambda: (gate.wait(), h.update('after'))); t.start();"
    session.execute(code)
    session.execute("gate.set(); t.join()")
    session.execute("1")
    session.save_notebook()
    notebook = (session.workspace / f"{session.name}.ipynb").read_text()
    assert "'after'" in notebook
    assert "'before'" not in notebook.replace("display('before'", "")


def test_a_kernel_that_ends_runs_exit_handlers_and_waits_for_threads(session: Session) -> None:
    code = "import atexit, pathlib, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
    code += "pool = ThreadPoolExecutor(2)\npool.submit(print).result()\n"
    code += "atexit.register(pathlib.Path('handled').touch)\natexit.register(lambda: 1 / 0)\n"
    code += "threading.Thread(target=lambda: (time.sleep(0.2), pathlib.Path('waited').touch())).start()"
    assert session.execute(code).ok
    result = session.execute("exit()")
    assert (result.cause, result.state) == ("exited", "lost")
    assert {"handled", "waited"} <= {path.name for path in session.workspace.iterdir()}


def test_a_stream_that_a_cell_closed_serves_the_next(session: Session) -> None:
    session.execute("import sys\nwith sys.stdout as f: f.write('x')")
    session.execute("sys.stderr.close()")
    assert session.execute("print('y')").stdout == "y\n"
    assert session.execute_command("echo a; echo b >&2").text == "a\nb\n"


@pytest.mark.shared_session
def test_a_forked_child_that_comes_back_from_the_cell_ends(session: Session) -> None:
    code = "import os\nchild = os.fork()\nif child: print('parent', os.waitpid(child, 0)[1])\nelse: print('child')"
    assert sorted(session.execute(code).stdout.splitlines()) == ["child", "parent 0"]


ANOTHER_WAY = {
    "os.system": "import os\ndef say(x): os.system(f'echo {x}')",
    "a child": "import subprocess\ndef say(x): subprocess.run(['echo', str(x)])",
    "a forked child": (
        "import os, warnings\nwarnings.simplefilter('ignore')  # newer Pythons warn of forks beside threads\n"
        "def say(x):\n  p = os.fork()\n  if not p: print(x); os._exit(0)\n  os.waitpid(p, 0)"
    ),
    "a command": "def say(x): get_ipython().system(f'echo {x}')",
}


@pytest.mark.parametrize("code", ANOTHER_WAY.values(), ids=ANOTHER_WAY)
@pytest.mark.shared_session
def test_output_of_all_ways_keeps_its_order(session: Session, code: str) -> None:
    session.execute(code)
    result = session.execute(
        "for n in range(20):\n print('own', n); say(n); display({'text/plain': 'shown'}, raw=True); say('x')"
    )
    assert result.text == "".join(f"own {n}\n{n}\nshown\nx\n" for n in range(20))


@pytest.mark.parametrize("start", ["subprocess.Popen(words)", "subprocess.Popen(words, start_new_session=True)"])
def test_output_of_an_earlier_cells_program_is_in_the_running_cell(session: Session, start: str) -> None:
    code = "import os, subprocess, time\nos.mkfifo('gate')\n"
    code += f"words = ['sh', '-c', 'echo now; touch said; read line < gate; echo late']\np = {start}\n"
    first = session.execute(f"{code}while not os.path.exists('said'): time.sleep(0.01)")
    assert (first.stdout, first.late) == ("now\n", ())
    session.execute("import sys")
    code = "written = open('gate', 'w').write('go')\nsys.stdout.write(f'{written} {p.wait()}\\n'); os.system('echo second');"
    second = session.execute(code)  # its line is one write, as writes do not wait for programs of earlier cells
    assert sorted(second.stdout.splitlines()) == ["2 0", "late", "second"]
    actual = session.wait_for(first.execution_id).result
    assert actual is not None
    assert (actual.stdout, actual.late) == ("now\n", ())


def test_a_pool_of_threads_prints_in_the_cell_that_gave_it_the_work(session: Session) -> None:
    session.execute(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(print, 1).result()"
    )
    for n in range(3):
        result = session.execute(f"pool.submit(print, {n}).result(); pool.submit(display, {n}).result()")
        assert (result.text, result.late) == (f"{n}\n{n}", ())


FAILS_WITHIN = {
    "a script": "%run fails.py\nprint('after')",
    "a script that exits": "%run exits.py\nprint('after')",
    "a captured cell": "%%capture caught\nprint('not seen')\n1 / 0",
    "a cell of a cell": "get_ipython().run_cell('1 / 0');\nprint('after')",
}


@pytest.mark.parametrize("code", FAILS_WITHIN.values(), ids=FAILS_WITHIN)
@pytest.mark.shared_session
def test_a_failure_that_ipython_only_shows_is_a_failure(session: Session, code: str) -> None:
    (session.workspace / "fails.py").write_text("1 / 0\n")
    (session.workspace / "exits.py").write_text("import sys\nsys.exit(3)\n")
    result = session.execute(code)
    assert (result.status, result.exit_code, result.state) == ("error", 1, "kept")
    assert [output.ename for output in result.outputs if isinstance(output, Error)] == [
        result.error.ename if result.error else ""
    ]
    assert result.diagnosis
    assert session.execute("1").status == "ok"


@pytest.mark.parametrize(
    "code", ["try: 1 / 0\nexcept ArithmeticError: get_ipython().showtraceback()", "%run works.py", "%%capture\nprint(1)"]
)
@pytest.mark.shared_session
def test_a_traceback_that_the_cell_shows_itself_is_no_failure(session: Session, code: str) -> None:
    (session.workspace / "works.py").write_text("import sys\nsys.exit(0)\n")
    assert session.execute(code).status == "ok"


@pytest.mark.shared_session
def test_displays_and_prints_keep_their_order(session: Session) -> None:
    code = "for n in range(50):\n    print(n)\n    display({'text/plain': f'd{n}'}, raw=True)\n"
    expected = "\n".join(f"{n}\nd{n}" for n in range(50))
    assert session.execute(code).text == expected


def test_displays_and_prints_keep_their_order_however_often_text_is_published(session: Session) -> None:
    code = "import sys; sys.stdout.flush_interval = 0\n"
    code += "for n in range(1000):\n    print(n)\n    display({'text/plain': f'd{n}'}, raw=True)\n"
    assert session.execute(code).text == "\n".join(f"{n}\nd{n}" for n in range(1000))


@pytest.mark.shared_session
def test_stdout_and_stderr_keep_their_order(session: Session) -> None:
    result = session.execute("import sys\nfor n in range(100): print(n, file=(sys.stdout, sys.stderr)[n % 2])")
    assert result.text == "".join(f"{n}\n" for n in range(100))


def test_names_of_the_users_own_are_known_when_they_are_lost(session: Session) -> None:
    session.execute("a = 1\nb = 2\n_hidden = 3\nimport os\ndef f(): pass\nfor loop in range(2): pass")
    session.execute("del b")
    assert session.execute("os._exit(0)").lost_names == ("a", "f", "loop", "os")


@pytest.mark.shared_session
def test_the_failing_line_is_counted_from_the_beginning_of_the_cell(session: Session) -> None:
    diagnosis = session.execute("\n  \n\nx = 1\n1 / 0").diagnosis
    assert diagnosis is not None
    assert (diagnosis.line, diagnosis.line_text) == (5, "1 / 0")


def test_more_names_than_are_listed_are_counted(session: Session) -> None:
    session.execute("globals().update({f'name{n}': n for n in range(1500)})")
    lost = session.execute("import os; os._exit(0)")
    assert (len(lost.lost_names), lost.state) == (1000, "lost")
    assert "1500 names were lost; 1000 of them are known." in lost.notes


def test_a_long_list_of_lost_names_is_cut_in_the_note(session: Session) -> None:
    session.execute("globals().update({f'name{n:02}': n for n in range(50)})")
    session.restart()
    reported = session.execute("1")
    assert (len(reported.lost_names), reported.state) == (50, "lost")
    assert "name19 and 30 more." in reported.notes[0]


def test_figures_are_shown_without_being_asked_for_and_saved(session: Session) -> None:
    result = session.execute("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t');")
    (image,) = result.images
    assert image.mime == "image/png"
    saved = [name for name in result.files if name.endswith(".png")]
    assert [(session.workspace / name).read_bytes() for name in saved] == [image.content]
    assert session.execute("1").images == ()


@pytest.mark.parametrize("code", ["len?", "%pinfo len", "import json\njson.dumps??"])
@pytest.mark.shared_session
def test_help_is_shown_without_a_pager(session: Session, code: str) -> None:
    result = session.execute(code)
    assert result.status == "ok"
    assert "Docstring" in result.text or "Source" in result.text


@pytest.mark.shared_session
def test_a_cell_that_catches_its_interrupt_ends_in_order(session: Session) -> None:
    code = "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('caught')\nprint('cleaned up')"
    result = session.execute(code, timeout=slow(2))
    assert (result.status, result.interrupted, result.exit_code, result.state) == ("error", "timeout", 124, "kept")
    assert result.stdout == "caught\ncleaned up\n"


def test_cpu_time_and_memory_are_the_kernels(session: Session) -> None:
    result = session.execute("import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    assert result.timing.cpu_seconds is not None
    assert 0.2 < result.timing.cpu_seconds < 5
    assert result.timing.peak_memory_bytes is not None
    assert result.timing.peak_memory_bytes > 10 * 2**20


@pytest.mark.nightly
def test_a_kernel_ends_with_all_its_commands_when_its_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "from kernelexec import Executor\n"
        f"with Executor('local', workspace={str(tmp_path)!r}) as executor:\n"
        "    session = executor.session()\n"
        "    print(session.execute('import os; os.getpid()').text, flush=True)\n"
        "    print(session.execute_command('setsid sleep 600 & echo $!').stdout, end='', flush=True)\n"
        "    say = lambda output: print(output.text, end='', flush=True)\n"
        "    session.execute('!sleep 601 & echo $!; sleep 602', timeout=600, on_output=say)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(owner.stdout.readline()) for _ in range(3)]
    owner.kill()
    owner.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_any_jupyter_client_can_use_the_launcher(short_path: Path) -> None:
    connection = short_path / "c.json"
    process = subprocess.Popen([sys.executable, str(LAUNCHER), "-f", str(connection), "--transport=ipc"], cwd=short_path)
    try:
        until(lambda: process.poll() is not None or (connection.exists() and connection.read_text().endswith("}")))
        assert process.poll() is None
        client = BlockingKernelClient()
        client.load_connection_file(str(connection))
        client.start_channels()
        client.wait_for_ready(timeout=BOUND)
        texts: list[str] = []
        reply = client.execute_interactive("print(6 * 7)", output_hook=lambda m: texts.append(m["content"].get("text", "")))
        assert reply["content"]["status"] == "ok"
        assert "42\n" in texts
        client.stop_channels()
    finally:
        process.kill()
        process.wait()


def test_the_launcher_imports_none_of_ours() -> None:
    code = "import sys, types; sys.argv = ['x', '--version']\nsys.modules['launcher'] = types.ModuleType('launcher')\n"
    code += f"sys.modules['launcher'].__path__ = [{str(LAUNCHER)!r}]\nimport launcher.launch.kernel_app\n"
    code += "assert not [name for name in sys.modules if name.startswith('kernelexec')]"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr


@pytest.mark.shared_session
def test_the_kernel_knows_a_cell_by_the_id_of_its_execution(session: Session) -> None:
    result = session.execute("print(get_ipython().kernel.get_parent()['header']['msg_id'])")
    assert result.stdout.strip() == result.execution_id
