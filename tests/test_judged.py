"""What user code starts as a program is judged before it starts, however it came by its words; what is not seen is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, Session
from tests.conftest import EVERY_KIND, KINDS

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


def test_what_may_run_runs(begun: Session) -> None:
    assert begun.execute("subprocess.run(['echo', 'a'], capture_output=True).stdout").text.strip() == "b'a\\n'"
    assert begun.execute("os.system('exit 3') >> 8").text.strip() == "3"
    assert begun.execute("import platform; platform.processor() is not None").ok
    assert begun.execute("!echo a").notes == ()
    assert begun.execute_command("env true && sh -c 'echo b'").stdout == "b\n"
    result = begun.execute("[subprocess.call(['true']) for _ in range(50)].count(0)")
    assert (result.text.strip(), result.notes) == ("50", ())


def test_a_cell_is_interrupted_while_it_waits_for_a_program(begun: Session) -> None:
    result = begun.execute("subprocess.run(['sleep', '60'])", timeout=0.3)
    assert (result.interrupted, result.state) == ("timeout", "kept")
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


def test_without_rules_nobody_is_asked(tmp_path: Path) -> None:
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
