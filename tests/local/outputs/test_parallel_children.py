"""Lines of children that write at once are whole, and a partial line is shown soon."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from kernelexec import Executor, Session
from tests.support.pace import RunningCell, until_equal

LINES, CHILDREN = 800, 4
CHILD = "import sys\nfor n in range(800): print(f'{sys.argv[1]}-{n}-' + 'x' * 60 + '-end')"
START = """
import multiprocessing as mp, os, subprocess, sys, warnings
warnings.simplefilter('ignore')  # of forks beside threads
def say(c):
    for n in range(800): print(c, n, 'x' * 60, 'end', sep='-')
def run(program, **options):
    processes = [subprocess.Popen([*program, str(c)], **options) for c in range(4)]
    for process in processes: process.wait()
def start(method):
    processes = [mp.get_context(method).Process(target=say, args=(c,)) for c in range(4)]
    for process in processes: process.start()
    for process in processes: process.join()
"""
AWK = 'BEGIN { for (n = 0; n < 800; n++) printf "%d-%d-%s-end\\n", ARGV[1], n, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxx" }'
WAYS = {
    "programs": "run([sys.executable, 'child.py'])",
    "programs with a named stream": "run([sys.executable, 'child.py'], stdout=sys.stdout)",
    "programs with the descriptor": "run([sys.executable, 'child.py'], stdout=1, stderr=subprocess.STDOUT)",
    "programs to stderr": "run(['sh', '-c', 'exec python child.py $0 >&2'])",
    "unbuffered programs": "run([sys.executable, '-u', 'child.py'])",
    "programs in C": f"run(['awk', {AWK!r}])",
    "forked children": (
        "for c in range(4):\n    if not os.fork():\n        say(c); os._exit(0)\nfor _ in range(4): os.wait()\n"
    ),
    "forked processes": "start('fork')",
    "spawned processes": "start('spawn')",
    "a pool": "with mp.get_context('fork').Pool(4) as pool: pool.map(say, range(4), 1)",
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspace")) as executor:
        opened = executor.session()
        (opened.workspace / "child.py").write_text(CHILD)
        opened.execute(START).raise_for_error()
        yield opened


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS)
def test_each_line_of_parallel_children_is_whole(session: Session, code: str) -> None:
    result = session.execute(code, timeout=60)
    lines = (result.stdout or result.stderr).splitlines()
    assert [line for line in lines if not re.fullmatch(r"\d-\d+-x+-end", line)] == []
    assert Counter(line[0] for line in lines) == dict.fromkeys("0123", LINES)


PARTIAL = {
    "a program": "process = subprocess.Popen(['sh', '-c', 'printf waiting; exec sleep 600'])",
    "a forked child": (
        "child = os.fork()\nif not child:\n    import time\n    print('waiting', end='', flush=True); time.sleep(600)"
    ),
}


@pytest.mark.parametrize("code", PARTIAL.values(), ids=PARTIAL)
def test_a_partial_line_is_shown_soon(session: Session, code: str) -> None:
    go = session.workspace / "go"
    go.unlink(missing_ok=True)
    running = RunningCell(session, f"{code}\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    go.touch()  # the cell has been heard, and neither it nor its child has ended
    assert running.result().stdout == "waiting"
    session.execute("if 'process' in globals(): process.kill()\nif 'child' in globals(): os.kill(child, 9)")


ENDED = {
    "a program": "subprocess.run(['printf', 'abc'])",
    "a program with a stream": "subprocess.run(['printf', 'abc'], stdout=sys.stdout)",
    "a forked child": "child = os.fork()\nif not child:\n    print('abc', end=''); os._exit(0)\nos.waitpid(child, 0)",
    "the system's shell": "os.system('printf abc')",
    "the descriptor": "os.write(1, b'abc')",
}


@pytest.mark.parametrize("code", ENDED.values(), ids=ENDED)
def test_the_partial_line_of_an_ended_child_comes_before_what_follows(session: Session, code: str) -> None:
    for _ in range(5):
        assert session.execute(f"{code}\nprint('def');").stdout == "abcdef\n"
        assert session.execute(f"{code};").stdout == "abc"


def test_children_one_after_another_keep_their_order(session: Session) -> None:
    code = "for n in range(30):\n    subprocess.run(['sh', 'both.sh', str(n)])\n    os.system('echo between')"
    (session.workspace / "both.sh").write_text("echo $1; echo $1 >&2")
    result = session.execute(code)
    assert result.stdout == "".join(f"{n}\nbetween\n" for n in range(30))
    assert result.stderr == "".join(f"{n}\n" for n in range(30))


def test_children_leave_no_descriptors(session: Session) -> None:
    count = "print(len(os.listdir('/proc/self/fd')))"
    before = session.execute(count).stdout
    session.execute("for _ in range(100): subprocess.run(['true'])")
    until_equal(lambda: session.execute(count).stdout, before)


def test_a_descriptor_that_the_cell_sent_elsewhere_is_the_childs_too(session: Session) -> None:
    code = "saved, file = os.dup(1), open('f', 'w')\nos.dup2(file.fileno(), 1)\nsubprocess.run(['echo', 'there'])\n"
    code += "os.dup2(saved, 1); os.close(saved); file.close(); subprocess.run(['echo', 'here']);"
    assert session.execute(code).stdout == "here\n"
    assert (session.workspace / "f").read_text() == "there\n"


def test_more_children_than_pipes_are_served(session: Session) -> None:
    code = "ps = [subprocess.Popen(['sh', '-c', 'read x; echo done'], stdin=subprocess.PIPE) for _ in range(80)]\n"
    code += "for p in ps: p.communicate(b'go\\n')"
    assert session.execute(code, timeout=60).stdout == "done\n" * 80
