"""What user code starts as a program is judged before it starts, wherever its words come from; unseen ones are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec import Executor, Session
from tests.conftest import EVERY_KIND, KINDS
from tests.support.pace import BOUND, RunningCell

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_a_program_is_judged_by_what_it_is[container-subprocess.run]", "test_allowed_programs_run")
#: Ways to start ``sudo ls`` that no reading of the cell could see.
HIDDEN = {
    "os.system": "os.system(word + ' ls')",
    "os.popen": "os.popen(word + ' ls')",
    "os.system, bytes": "os.system(word.encode() + b' ls')",
    "subprocess.run": "subprocess.run([word, 'ls'])",
    "subprocess by a shell": "subprocess.run(word + ' ls', shell=True)",
    "subprocess by another name": "subprocess.run(['ls', '-l'], executable='/usr/bin/' + word)",
    "subprocess behind env": "subprocess.run(carried)",
    "subprocess behind a shell": "subprocess.run(shelled)",
    "a path": "subprocess.run([pathlib.Path('/usr/bin') / word, 'ls'])",
    "asyncio": "await asyncio.create_subprocess_exec(word, 'ls')",
    "asyncio by a shell": "await asyncio.create_subprocess_shell(word + ' ls')",
    "exec": "os.execvp(word, [word, 'ls'])",
    "spawn": "os.posix_spawn('/usr/bin/' + word, [word, 'ls'], {})",
    "a terminal": "pty.spawn([word, 'ls'])",
    "a module's own function": "importlib.import_module('sub' + 'process').call([word, 'ls'])",
    "IPython's runner": "get_ipython().system(word + ' ls')",
    "IPython's runner, captured": "get_ipython().getoutput(word + ' ls')",
    "a line for a shell": "get_ipython().run_line_magic('sx', word + ' ls')",
    "a cell for a shell": "get_ipython().run_cell_magic('bash', '', word + ' ls')",
    "a script on stdin": "get_ipython().run_cell_magic('bash', '-s', word + ' ls')",
    "an alias": "get_ipython().alias_manager.define_alias('a', 'true; ' + word)\nget_ipython().run_line_magic('a', 'ls')",
    "the runner itself": "get_ipython().run_argv([word, 'ls'])",
    "the session's own shell": "get_ipython().run_command(word + ' ls')",
    "code that is made": "exec('import sub' + 'process as s; s.run([word, \"ls\"])')",
}
_BEGIN = "import asyncio, importlib, os, pathlib, pty, subprocess, threading\nword = ''.join(['su', 'do'])\n"
_BEGIN += "carried, shelled = ['env', 'A=1', word, 'ls'], ['sh', '-c', 'exec ' + word + ' ls']"


@pytest.fixture(scope="module", params=EVERY_KIND)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def begun(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor(kind, workspace=tmp_path_factory.mktemp("workspaces"), config=KINDS[kind]) as executor:
        session = executor.session()
        assert session.execute(_BEGIN).ok
        yield session


@pytest.mark.parametrize("code", HIDDEN.values(), ids=HIDDEN)
def test_a_program_is_judged_by_what_it_is(begun: Session, code: str) -> None:
    result = begun.execute(code)
    assert (result.status, result.state) == ("error", "kept")
    assert result.error is not None
    assert result.error.ename == "PermissionError"
    assert "rule 'sudo'" in result.error.evalue
    assert [note for note in result.notes if "program that the cell was to start was refused" in note]


def test_a_thread_is_judged_too(begun: Session) -> None:
    code = """
said = []
def start():
    try:
        subprocess.run([word])
    except OSError as exc:
        said.append(type(exc).__name__)
thread = threading.Thread(target=start); thread.start(); thread.join()
said
"""
    result = begun.execute(code)
    assert result.text.strip() == "['PermissionError']"


def test_allowed_programs_run(begun: Session) -> None:
    assert begun.execute("subprocess.run(['echo', 'a'], capture_output=True).stdout").text.strip() == "b'a\\n'"
    assert begun.execute("os.system('exit 3') >> 8").text.strip() == "3"
    assert begun.execute("import platform; platform.processor() is not None").ok
    assert begun.execute("!echo a").notes == ()
    assert begun.execute_command("env true && sh -c 'echo b'").stdout == "b\n"
    result = begun.execute("[subprocess.call(['true']) for _ in range(50)].count(0)")
    assert (result.text.strip(), result.notes) == ("50", ())


def test_a_cell_is_interrupted_while_it_waits_for_a_program(begun: Session) -> None:
    cell = RunningCell(begun, "subprocess.run(['sh', '-c', 'echo begun; exec sleep 600'])", timeout=600)
    begun.interrupt()
    result = cell.result()
    assert (result.interrupted, result.state) == ("request", "kept")
    assert begun.execute("subprocess.call(['true'])").text.strip() == "0"


def test_the_lists_hold_for_programs(tmp_path: Path) -> None:
    config = {"rules": {"allowed_commands": ["echo"]}}
    with Executor("local", workspace=tmp_path, config=config) as executor:
        session = executor.session()
        session.execute("import subprocess\nwords = [['echo', 'a'], ['ls']]")
        assert session.execute("subprocess.call(words[0])").text.strip() == "a\n0"
        result = session.execute("subprocess.call(words[1])")
        assert result.error is not None
        assert "rule 'allowed-commands'" in result.error.evalue


def test_without_rules_no_approval_is_requested(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"rules": {"dangers": False}}) as executor:
        session = executor.session()
        assert session.execute(f"{_BEGIN}\nsubprocess.call(['chm' + 'od', '--version'], stdout=-3)").text.strip() == "0"


def test_many_threads_at_once_get_their_own_answers(begun: Session) -> None:
    code = """
def start(number):
    words = [word, 'x'] if number % 2 else ['true']
    try:
        outcomes[number] = subprocess.call(words)
    except PermissionError:
        outcomes[number] = 'refused'
outcomes = {}
threads = [threading.Thread(target=start, args=(number,)) for number in range(20)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
sorted(outcomes.items()) == [(number, 'refused' if number % 2 else 0) for number in range(20)]
"""
    assert begun.execute(code).text.strip() == "True"


def test_long_commands_are_judged_as_a_whole(begun: Session) -> None:
    lines = ("z" * 79 + "\n") * 1000
    for send in (begun.execute_command, lambda text: begun.execute(f"%%bash\n{text}")):
        assert send(f"cat <<'EOF' | wc -c\n{lines}EOF").text.strip() == "80000"
    assert begun.execute("subprocess.run(\"echo '\" + 'x' * 70000 + \"' | wc -c\", shell=True).returncode").text == "70001\n0"
    result = begun.execute("os.system(':;' * 50_000 + word + ' ls')")
    assert result.error is not None
    assert "rule" in result.error.evalue
    result = begun.execute("subprocess.run(['true', 'x' * 5_000_000])")
    assert result.error is not None
    assert "write it to a file" in result.error.evalue


def test_a_thread_of_a_cell_long_ago_is_answered(begun: Session) -> None:
    code = "go, said = threading.Event(), []\n"
    code += "thread = threading.Thread(target=lambda: (go.wait(), said.append(subprocess.call(['true']))))\nthread.start()"
    assert begun.execute(code).ok
    for _ in range(210):
        begun.execute("1")
    assert begun.execute("go.set(); thread.join(50); said").text == "[0]"


def test_another_client_of_the_kernel_is_answered(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session()
        assert session.execute(_BEGIN).ok
        client = BlockingKernelClient(connection_file=str(session.connection_file))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=BOUND)
            codes = ("!true", "subprocess.call([word, 'ls'])")
            replies = [client.execute(code, reply=True, timeout=BOUND) for code in codes]
        finally:
            client.stop_channels()
        assert [reply["content"]["status"] for reply in replies] == ["ok", "error"]
        assert "rule 'sudo'" in replies[1]["content"]["evalue"]
