"""Results that are found again: only where all that ran before was the same, and never without the cell being made good."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelexec import ExecutionResult, Executor, InvalidConfig, Session
from kernelexec.cache import Store
from kernelexec.workspace.file_changes import IGNORED
from tests.support.engine import IMAGE, needs_engine

KINDS = ["local", pytest.param("container", marks=needs_engine)]


@pytest.fixture(params=KINDS)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(place: Path, isolation: str = "local", **options: Any) -> Iterator[Session]:
    """A new session of the same name, in the same workspace and with the same cache as every other one of this place."""
    config = {"cache": str(place / "cache"), "confinement": {"level": "off"}, "container": {"image": IMAGE}, **options}
    with Executor(isolation, workspace=place / "workspaces", config=config) as executor:
        yield executor.session("s")


def run(session: Session, *cells: str) -> list[ExecutionResult]:
    return [session.execute(cell) for cell in cells]


def found(results: list[ExecutionResult]) -> list[bool]:
    return [result.cached for result in results]


def kept(place: Path) -> list[Path]:
    return sorted((place / "cache").rglob("*.json"))


DEFINED = "def f(): return x * 10"


def test_the_value_of_now_is_shown_whatever_was_before(tmp_path: Path, isolation: str) -> None:
    for _ in range(2):
        with opened(tmp_path, isolation) as session:
            results = run(session, DEFINED, "x = 1", "f()", "x = 2", "f()")
            assert [result.text for result in results] == ["", "", "10\n", "", "20\n"]
    assert found(results) == [True] * 5
    with opened(tmp_path, isolation) as session:  # the same cells in another order
        results = run(session, DEFINED, "x = 2", "f()", "x = 1", "f()")
        assert [result.text for result in results] == ["", "", "20\n", "", "10\n"]
        assert found(results) == [True, False, False, False, False]


def test_a_second_process_finds_them_and_the_cell_is_not_run(tmp_path: Path) -> None:
    program = """
import sys
from kernelexec import Executor
config = {"cache": sys.argv[2], "confinement": {"level": "off"}}
with Executor("local", workspace=sys.argv[1], config=config) as executor:
    session = executor.session("s")
    results = [session.execute(cell) for cell in ("x = 6", sys.argv[3], "x")]
    print(*(int(result.cached) for result in results), results[1].stdout.strip(), results[2].text.strip())
"""
    sign = tmp_path / "sign"  # made in a way that no text shows: what is seen to write is never found
    cell = f"import ctypes\nx *= 7\nprint('ran', ctypes.CDLL(None).creat({os.fsencode(sign)!r}, 0o600) > 0)"
    command = [sys.executable, "-c", program, str(tmp_path / "workspaces"), str(tmp_path / "cache"), cell]
    first = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (first, sign.exists()) == ("0 0 0 ran True 42\n", True)
    sign.unlink()
    second = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert (second, sign.exists()) == ("1 1 1 ran True 42\n", False)


def test_what_was_found_is_run_in_order_before_what_is_not(tmp_path: Path, isolation: str) -> None:
    cells = ("things = []", "things.append(1)", "things.append(2); things")
    with opened(tmp_path, isolation) as session:
        run(session, *cells)
    with opened(tmp_path, isolation) as session:
        results = run(session, *cells)
        assert found(results) == [True] * 3
        assert results[-1].text == "[1, 2]\n"
        assert (results[-1].state, results[-1].execution_count, results[-1].exit_code) == ("kept", 3, 0)
        assert results[-1].notes[0].startswith("From the cache: ")
        new = session.execute("things.append(3); things")
        assert (new.cached, new.text, new.execution_count, new.notes) == (False, "[1, 2, 3]\n", 4, ())
        assert session.execute("Out[3] is things, In[2]").text == "(True, 'things.append(1)')\n"
    with opened(tmp_path, isolation) as session:  # what was run behind those that were found is found too
        assert found(run(session, *cells, "things.append(3); things")) == [True] * 4


KILLED = """
import os, signal, sys
from kernelexec import Executor
config = {"cache": sys.argv[2], "confinement": {"level": "off"}, "container": {"image": sys.argv[3]}}
executor = Executor("container", workspace=sys.argv[1], config=config).__enter__()
session = executor.session("s")
found = [session.execute(cell).cached for cell in ("x = 6", "y = x * 7")]
print(*found, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_engine
def test_the_next_owner_of_the_kernel_runs_what_was_found(tmp_path: Path) -> None:
    with opened(tmp_path, "container") as session:
        run(session, "x = 6", "y = x * 7")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "workspaces"), str(tmp_path / "cache"), IMAGE]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stdout == "True True\n"
    with opened(tmp_path, "container") as session:
        result = session.execute("y")
        assert (result.text, result.state, result.kernel_epoch, result.cached) == ("42\n", "kept", 1, False)


LOOKS: dict[str, Callable[[Session], object]] = {
    "variables": lambda session: [variable.name for variable in session.variables()] == ["x"],
    "completion": lambda session: session.complete("x.bit_c").matches == (".bit_count",),
    "inspection": lambda session: "int" in (session.inspect("x") or ""),
    "tests": lambda session: session.run_tests("", ["x == 41"]).ok,
    "snapshot": lambda session: session.snapshot().names == {"x"},
    "command": lambda session: session.execute_command("true").ok and session.execute("x == 41").text == "True\n",
    "file": lambda session: session.files.write("new", "") and session.execute("x == 41").text == "True\n",
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_who_looks_at_the_kernel_sees_what_was_found(tmp_path: Path, look: Callable[[Session], object]) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            result = session.execute("x = 41")
    with opened(tmp_path) as session:
        assert session.execute("x = 41").cached
        assert look(session)
    assert result.cached


def test_a_file_is_written_after_the_cells_that_read_the_old_one(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            session.files.write("data", "old")
            (result,) = run(session, "text = open('data').read()")
            session.files.write("data", "new")
            assert session.execute("text").text == "'old'\n"
    assert result.cached


NEVER = {
    "a failure": "1 / 0",
    "a command that fails": "!exit 3",
    "a command": "!echo here",
    "a cell that runs one": "found = !echo here",
    "a program": "import subprocess\nsubprocess.run(['true'])",
    "a file that is made": "open('made', 'w').write('here')",
    "time": "import time\ntime.time() > 0",
    "a date": "from datetime import datetime as d\nd.now().year > 0",
    "a date of pandas": "import pandas as pd\npd.Timestamp.now().year > 0",
    "chance": "import random\nrandom.random() < 2",
    "chance of numpy": "import numpy as np\nnp.random.default_rng().random() < 2",
    "no seed": "import random\nrandom.seed(None)\nrandom.random() < 2",
    "a generator without a seed": "import numpy as np\nnp.random.default_rng(seed=None).random() < 2",
    "a sample without a seed": "import pandas as pd\nlen(pd.DataFrame({'a': [1, 2]}).sample(1, random_state=None))",
    "a sample": "import pandas as pd\nlen(pd.DataFrame({'a': [1, 2]}).sample(1))",
    "a name for all time": "import uuid\nlen(str(uuid.uuid4()))",
    "a function of chance": "import os\ndef g(): return os.urandom(1)\nlen(g())",
    "an address": "id(1) > 0",
    "an address of the network": "import io\nlen(str('x').join(['http://127.0.0.1:9/', 'y']))\nstr('http://127.0.0.1:9/')",
    "text that is run": "eval('1')",
    "deleting": "import os\nos.remove(open('gone', 'w').name)",
    "all names of a module": "from time import *\ntime() > 0",
    "a computed name": "import time\ngetattr(time, 'ti' + 'me')() > 0",
    "a module in a list": "import time\n[time][0].time() > 0",
    "a module by another name": "import time\nt = time\nt.time() > 0",
    "a module that is looked up": "import sys, time\nsys.modules['time'].time() > 0",
    "a module that is imported by its name": "import importlib\nimportlib.import_module('time').time() > 0",
    "a date of pandas in words": "import pandas as pd\npd.Timestamp('now').year > 0",
    "a date of numpy in words": "import numpy as np\nnp.datetime64('now').item().year > 0",
    "a date of numpy in other words": "import numpy as np\nnp.datetime64('NOW').item().year > 0",
    "a date of pandas in a list": "import pandas as pd\npd.to_datetime(['now']).year[0] > 0",
    "a date of pandas in a variable": "import pandas as pd\nword = 'now'\npd.Timestamp(word).year > 0",
    "a clock that is handed on": "import pandas as pd\nlist(map(pd.Timestamp.now, [None]))[0].year > 0",
    "a clock by a computed name": "import datetime\ngetattr(datetime.datetime, 'no' + 'w')().year > 0",
    "chance by a name": "import numpy as np\ngetattr(np, 'random').rand() < 2",
    "all names of os": "from os import *\ngetpid() > 0",
    "all names of paths": "from os.path import *\ngetmtime('.') > 0",
    "all names of glob": "from glob import *\nlen(glob('*')) >= 0",
    "a sample whose seed may be none": "import pandas as pd\nseed = None\nlen(pd.Series([1, 2]).sample(1, random_state=seed))",
    "a clock of a class": "import time\nclass A:\n    now_ = lambda self: time.time()\nA().now_() > 0",
    "a clock by default": "import time\nf = lambda clock=time.time: clock()\nf() > 0",
    "a question in other words": "import builtins\ntry:\n    builtins.input()\nexcept Exception:\n    print('nobody')",
    "a file by the other name": "import builtins\nbuiltins.open('/tmp/kernelexec-elsewhere', 'w').close()",
    "a device": "len(open('/dev/urandom', 'rb').read(3))",
    "what the system says": "len(open('/proc/uptime').read()) > 0",
    "a place in memory by another name": "def f(): pass\nf.__hash__() > 0",
    "the time of a database": "import sqlite3\nsqlite3.connect(':memory:').execute('select unixepoch()').fetchone()[0] > 0",
    "a warning that shows the process": "import warnings\nwarnings.warn('here')",
    "how long it takes": "import timeit\ntimeit.default_timer() > 0",
    "what it takes": "import resource\nresource.getrusage(0).ru_utime >= 0",
    "a rare distribution": "import random\nrandom.vonmisesvariate(0, 1) < 9",
    "a rare distribution of numpy": "import numpy as np\nnp.random.laplace() < 99",
    "a seed that is not reached": "import random\nif not 1: random.seed(1)\nrandom.random() < 2",
    "when a file was written": "import os\nos.path.getmtime('.') > 0",
    "rights of a file": "import os\nos.access('.', os.R_OK)",
    "a directory that is made": "import os\nos.makedirs('made.d', exist_ok=False)",
    "a link that is made": "import os\nos.symlink('nowhere', 'made.l')",
    "a file elsewhere": "import tempfile\nopen('/tmp/kernelexec-elsewhere', mode='w').write('here')",
    "a file by its path": "import pathlib\npathlib.Path('/tmp/kernelexec-elsewhere').open('w').close()",
    "a table elsewhere": "import pandas as pd\npd.DataFrame({'a': [1]}).to_csv('/tmp/kernelexec-elsewhere')",
    "an address in a variable": "address = 'http://127.0.0.1:9/d.csv'",
    "an address in parts": "port = 9\naddress = f'http://127.0.0.1:{port}/'",
    "a statement that asks for the time": "question = \"select date('now')\"",
    "another seed": "import random, pandas as pd\nrandom.seed(1)\nlen(pd.DataFrame({'a': [1, 2]}).sample(1))",
    "a session's own variable": "import os\nos.environ['TMPDIR'] != ''",
    "all variables": "import os\nlen(os.environ) > 0",
    "the arguments of the process": "import sys\nlen(sys.argv) > 0",
    "names of files": "import glob\nglob.glob('*') is None",
    "a place in memory": "object()",
    "a thread": "import threading\nthreading.Thread(target=print).start()",
}


@pytest.mark.parametrize("cell", NEVER.values(), ids=NEVER)
def test_what_is_never_found_again(tmp_path: Path, cell: str) -> None:
    for _ in range(2):
        with opened(tmp_path, notebook=False) as session:
            results = run(session, "y = 1", cell)
            for name in ("made", "gone", "made.l"):
                (session.workspace / name).unlink(missing_ok=True)
            if (session.workspace / "made.d").exists():
                (session.workspace / "made.d").rmdir()
            assert not results[1].cached


ALWAYS = {
    "sleeping": "import time\ntime.sleep(0.01)",
    "a generator with a seed": "import numpy as np\nnp.random.default_rng(7).random()",
    "one seed for all": "import random\nrandom.seed(1)\nrandom.random()",
    "a sample with a seed": "import pandas as pd\npd.DataFrame({'a': [1, 2]}).sample(1, random_state=1)",
    "a given date": "import datetime\nprint(datetime.date(2024, 1, 1))",
    "a magic that sets something": "%matplotlib inline\n1",
    "a picture": "import matplotlib.pyplot as plt\nplt.plot([1, 2]);",
    "a warning": "import sys\nprint('careful', file=sys.stderr)",
    "a value in forms": "from IPython.display import HTML\nHTML('<b>1</b>')",
}


@pytest.mark.parametrize("cell", ALWAYS.values(), ids=ALWAYS)
def test_what_is_found_again(tmp_path: Path, cell: str) -> None:
    shown = []
    for _ in range(2):
        with opened(tmp_path) as session:
            shown.append(session.execute(cell))
    first, second = shown
    assert (first.cached, second.cached) == (False, True)
    assert (second.outputs, second.execution_count, second.total_bytes) == (first.outputs, 1, first.total_bytes)
    assert len(second.files) == len(first.files)
    assert all((session.workspace / name).is_file() for name in second.files)


LATER = {
    "a function": ("def f(): return np.random.rand()", "import numpy as np", "f()"),
    "another name": ("def f(): return clock()", "from time import time as clock", "f()"),
    "a lambda": ("f = lambda: clock.time()", "import time as clock", "f()"),
    "a method": ("class A:\n    def go(self): return clock()", "from time import time as clock", "A().go()"),
    "a function in it": ("def f():\n    def g(): return clock()\n    return g", "from time import time as clock", "f()()"),
    "a function that calls it": ("def f(): return clock()", "def g(): return f()", "from time import time as clock", "g()"),
}


@pytest.mark.parametrize("cells", LATER.values(), ids=LATER)
def test_what_a_function_uses_may_be_imported_after_it(tmp_path: Path, cells: tuple[str, ...]) -> None:
    for _ in range(2):
        with opened(tmp_path, notebook=False) as session:
            results = run(session, *cells)
    assert found(results) == [*[True] * (len(cells) - 1), False]


def test_nothing_is_found_after_what_was_drawn(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            results = run(session, "import random", "x = random.random()", "y = 1", "y")
    assert found(results) == [True, False, False, False]


@pytest.mark.parametrize(
    "options", [{"budgets": {"timeout": 0.5}}, {"output": {"stream_bytes": 1024}}], ids=["timeout", "too much output"]
)
def test_what_did_not_end_whole_is_not_found(tmp_path: Path, options: dict[str, Any]) -> None:
    for _ in range(2):
        with opened(tmp_path, **options) as session:
            assert not session.execute("import time\nprint('x' * 100_000)\ntime.sleep(2)").cached


def test_other_files_are_another_key(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.files.write("data", "one")
        assert session.execute("open('data').read()").text == "'one'\n"
    with opened(tmp_path) as session:
        session.files.write("data", "two")
        result = session.execute("open('data').read()")
        assert (result.text, result.cached) == ("'two'\n", False)
    with opened(tmp_path) as session:
        session.files.write("data", "one")
        result = session.execute("open('data').read()")
        assert (result.text, result.cached) == ("'one'\n", True)


CHANGED: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], str]] = {
    "what a link leads to": (lambda p: (p / "l").symlink_to("a"), lambda p: (p / "l").symlink_to("b"), "open('l').read()"),
    "a directory": (lambda p: p, lambda p: (p / "d").mkdir(), "import os\nos.path.isdir('d')"),
    "names in a directory": (
        lambda p: p,
        lambda p: (p / "c").mkdir(),
        "import os\n[name for name in 'abcd' if os.path.exists(name)]",
    ),
    "what is no file": (lambda p: p, lambda p: os.mkfifo(p / "pipe"), "import os\nos.path.exists('pipe')"),
    "rights": (lambda p: (p / "a").chmod(0o600), lambda p: (p / "a").chmod(0o640), "text = open('a').read()"),
}


@pytest.mark.parametrize(("first", "second", "cell"), CHANGED.values(), ids=CHANGED)
def test_what_else_cells_see_of_files_is_another_key(
    tmp_path: Path, first: Callable[[Path], object], second: Callable[[Path], object], cell: str
) -> None:
    for change, hit in ((first, False), (first, True), (second, False)):
        with opened(tmp_path) as session:
            (session.workspace / "l").unlink(missing_ok=True)
            for name in ("a", "b"):
                (session.workspace / name).write_text(name)
            change(session.workspace)
            assert session.execute(cell).cached is hit


def test_what_a_link_leads_to_outside_counts_as_it_is_now(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for value, hit in (("1", False), ("1", True), ("22", False)):
        if not outside.exists() or outside.read_text() != value:
            outside.write_text(value)
        with opened(tmp_path) as session:
            link = session.workspace / "l"
            if not link.is_symlink():
                link.symlink_to(outside)
            result = session.execute("open('l').read()")
            assert (result.text, result.cached) == (f"'{value}'\n", hit)


def test_a_file_is_read_anew_by_a_link_to_a_directory_outside(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    for value in "12":
        (tmp_path / "outside" / "data").write_text(value)
        with opened(tmp_path) as session:
            if not (session.workspace / "l").is_symlink():
                (session.workspace / "l").symlink_to(tmp_path / "outside")
            result = session.execute("open('l/data').read()")
            assert (result.text, result.cached) == (f"'{value}'\n", False)


@pytest.mark.parametrize(
    "name", [f"{directory}/data" for directory in sorted(IGNORED)] + ["s.ipynb", "outputs/cell-0001-1.png"]
)
def test_a_file_at_which_nobody_looks_is_read_anew(tmp_path: Path, name: str) -> None:
    for value in "12":
        with opened(tmp_path, notebook=False) as session:
            (session.workspace / name).parent.mkdir(exist_ok=True)
            (session.workspace / name).write_text(value)
            result = session.execute(f"open({name!r}).read()")
            assert (result.text, result.cached) == (f"'{value}'\n", False)


def test_what_is_found_comes_of_one_run(tmp_path: Path) -> None:
    cells = ("import itertools\nhidden = next(iter({'ann', 'bob', 'cid', 'dan', 'eve'}))", "hidden")
    with opened(tmp_path) as session:
        first = run(session, *cells)
        assert found(first) == [False, False]
    for path in kept(tmp_path):  # the first cell's is forgotten, as what was used least lately is
        if (
            "ann" not in path.read_text()
            and "bob" not in path.read_text()
            and not any(name in path.read_text() for name in ("cid", "dan", "eve"))
        ):
            path.unlink()
    assert len(kept(tmp_path)) == 1
    with opened(tmp_path) as session:
        results = run(session, *cells)
        assert found(results) == [False, False]  # another run of the first may have hidden something else
    with opened(tmp_path) as session:
        assert found(run(session, *cells)) == [True, True]


def test_nothing_is_found_behind_a_cell_that_is_not(tmp_path: Path) -> None:
    cells = (
        "import sqlite3\nc = sqlite3.connect('d.db')\nc.execute('create table if not exists t (a)')\nc.commit()",
        "x = 1",
        "x",
    )
    for _ in range(2):
        with opened(tmp_path) as session:
            assert found(run(session, "y = 1", *cells))[1:] == [False, False, False]


def test_modules_of_a_path_of_the_users_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "changing.py").write_text("value = 1\n")
    for _ in range(2):
        with opened(tmp_path, environment={"set": {"PYTHONPATH": str(tmp_path / "modules")}}) as session:
            assert not session.execute("import changing; changing.value").cached


def test_modules_of_the_workspace_are_not_followed(tmp_path: Path) -> None:
    cells = ("import clock", "clock.now_is()", "1")
    for _ in range(2):
        with opened(tmp_path) as session:
            (session.workspace / "clock.py").write_text("import time\ndef now_is(): return time.time() > 0\n")
            results = run(session, "0", *cells)
    assert found(results) == [True, False, False, False]


def test_a_seed_of_a_cell_that_failed_does_not_count(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            results = run(session, "import random", "1 / 0\nrandom.seed(1)", "random.random() < 2")
    assert found(results) == [True, False, False]


def test_what_a_silent_cell_read_is_part_of_what_follows(tmp_path: Path) -> None:
    cells = ("text = open('data').read()", "text")
    with opened(tmp_path) as session:
        (session.workspace / "data").write_text("old")
        run(session, cells[0])
        (session.workspace / "data").write_text("new")
        assert session.execute(cells[1]).text == "'old'\n"
    with opened(tmp_path) as session:
        assert run(session, *cells)[1].text == "'new'\n"


def test_files_that_changed_before_a_found_cell_ran_are_told(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        (session.workspace / "data").write_text("old")
        run(session, "text = open('data').read()")
    with opened(tmp_path) as session:
        assert session.execute("text = open('data').read()").cached
        (session.workspace / "data").write_text("new")
        assert any("Files have changed since" in note for note in session.execute("text").notes)


def test_a_file_that_is_written_anew_as_it_was_is_written(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            (session.workspace / "data").write_text("same")
            assert not session.execute("_ = open('data', 'w').write('same')").cached


def test_a_users_own_file_beside_saved_displays_counts(tmp_path: Path) -> None:
    for value in ("1", "2"):
        with opened(tmp_path) as session:
            session.files.write("outputs/mine.csv", value)
            assert session.execute("open('outputs/mine.csv').read()").text == f"'{value}'\n"


def test_other_settings_are_another_key(tmp_path: Path) -> None:
    for value, hit in (("1", False), ("2", False), ("1", True)):
        with opened(tmp_path, environment={"set": {"MODE": value}}) as session:
            result = session.execute("import os; os.environ['MODE']")
            assert (result.text, result.cached) == (f"'{value}'\n", hit)


def test_another_environment_of_this_process_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, hit in (("1", False), ("2", False), ("1", True)):
        monkeypatch.setenv("PLAIN", value)
        monkeypatch.setenv("SHLVL", value + value)
        with opened(tmp_path) as session:
            result = session.execute("import os; os.environ['PLAIN']")
            assert (result.text, result.cached) == (f"'{value}'\n", hit)


def test_what_ends_otherwise_when_it_runs_is_told_and_forgotten(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    cell = f"text = open({str(outside)!r}).read(); text"
    outside.write_text("old")
    with opened(tmp_path) as session:
        run(session, cell)
    outside.write_text("new")
    with opened(tmp_path) as session:
        assert session.execute(cell).text == "'old'\n"
        later = session.execute("text")
        assert later.text == "'new'\n"
        assert any("ran now, and showed something else" in note for note in later.notes)
    with opened(tmp_path) as session:
        result = session.execute(cell)
        assert (result.cached, result.text) == (False, "'new'\n")
    outside.unlink()
    with opened(tmp_path) as session:
        assert session.execute(cell).cached
        later = session.execute("1")
        assert any("ended with FileNotFoundError" in note for note in later.notes)


def test_a_kernel_that_ends_while_it_catches_up_is_a_loss_that_is_told(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("0")
    cell = f"import ctypes\nif open({str(outside)!r}).read() == '1': ctypes.string_at(0)"
    with opened(tmp_path) as session:
        run(session, "x = 1", cell)
    outside.write_text("1")
    with opened(tmp_path) as session:
        assert found(run(session, "x = 1", cell)) == [True, True]
        result = session.execute("'x' in globals()")
        assert (result.text, result.state, result.kernel_epoch) == ("False\n", "lost", 2)
        assert "x" in result.lost_names


def test_an_interrupt_ends_catching_up_too(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "import time\ntime.sleep(1.5)")
    with opened(tmp_path) as session:
        assert session.execute("import time\ntime.sleep(1.5)").cached
        waiting = session.execute("x = 1", wait=0.3)
        assert waiting.status == "running"
        ended = session.interrupt(waiting.execution_id)
        assert ended is not None
        assert ended.status == "aborted"
        assert "which was interrupted: 'import time'" in ended.notes[0]
        assert session.execute("'x' in globals()").text == "False\n"


def test_a_restart_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "x = 1", "x")
        session.restart()
        told, again = run(session, "x = 1", "x")
        assert (told.state, told.cached, again.cached) == ("lost", False, False)  # what was lost is told by one that runs
        session.restart()
        assert session.execute("'x' in globals()").text == "False\n"


def test_who_follows_a_cell_that_is_found_gets_its_outputs(tmp_path: Path) -> None:
    cell = "print('one')\ndisplay({'text/plain': 'two'}, raw=True)"
    with opened(tmp_path) as session:
        run(session, cell)
    heard: list[object] = []
    with opened(tmp_path) as session:
        result = session.execute(cell, on_output=heard.append)
        assert result.cached
        assert heard == list(result.outputs)
        assert session.wait_for(result.execution_id).outputs == result.outputs
        assert session.read_output(result.execution_id).text == "one\n"
        session.save_notebook()
        assert session.notebook is not None
        assert "two" in session.notebook.read_text()


def test_rules_come_first(tmp_path: Path) -> None:
    cell = "import socket"
    with opened(tmp_path) as session:
        run(session, "x = 1", cell)
    with opened(tmp_path, rules={"forbidden_modules": ["socket"]}) as session:
        result = session.execute(cell)
        assert (result.status, result.cached) == ("aborted", False)


def test_a_damaged_one_is_none(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\x00" * 100):
        with opened(tmp_path) as session:
            run(session, "x = 1")
        (path,) = kept(tmp_path)
        path.write_bytes(content)
        with opened(tmp_path) as session:
            assert not session.execute("x = 1").cached
            assert session.execute("x").text == "1\n"
        for path in kept(tmp_path):
            path.unlink()


def test_nothing_is_kept_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with opened(tmp_path, cache=False) as session:
        run(session, "1")
    assert not (tmp_path / "home").exists()
    with opened(tmp_path, cache=True) as session:
        run(session, "1")
    assert len(list((tmp_path / "home/kernelexec/results").rglob("*.json"))) == 1


def test_a_workspace_around_the_cache_keeps_nothing(tmp_path: Path) -> None:
    config = {"cache": str(tmp_path / "inner" / "cache")}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        session = executor.session("s", work_dir=tmp_path / "inner")
        run(session, "1")
    assert list((tmp_path / "inner").rglob("*.json")) == []


def test_sessions_with_secrets_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", "hush-hush-hush")
    with opened(tmp_path, secrets={"KEY": {"env": "SOURCE"}}) as session:
        run(session, "import os; os.environ['KEY'][::-1]")
    assert kept(tmp_path) == []


def test_files_are_private(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "1")
    (path,) = kept(tmp_path)
    modes = [os.stat(place).st_mode & 0o777 for place in (path, path.parent, path.parent.parent)]  # noqa: PTH116 - a mode
    assert modes == [0o600, 0o700, 0o700]


def test_a_directory_that_cells_or_others_could_write_is_refused(tmp_path: Path) -> None:
    for directory in (tmp_path / "workspaces" / "cache", tmp_path):
        with pytest.raises(InvalidConfig, match="where cells can write"):
            Executor("local", workspace=tmp_path / "workspaces", config={"cache": str(directory)})
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").write_text("")
    for name, why in (("open", "not this user's alone"), ("file", "File exists")):
        with pytest.raises(InvalidConfig, match=why):
            Executor("local", workspace=tmp_path / "workspaces", config={"cache": str(tmp_path / name)})


def test_a_directory_that_cells_may_write_besides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for more in (
        {"confinement": {"writable": [str(tmp_path / "more")]}},
        {"context_paths": [{"path": str(tmp_path / "more"), "permission": "write"}]},
    ):
        config = {"cache": str(tmp_path / "more" / "cache"), **more}
        with pytest.raises(InvalidConfig, match="where cells can write"):
            Executor("local", workspace=tmp_path / "workspaces", config=config)


def test_the_store_keeps_within_its_size(tmp_path: Path) -> None:
    store = Store(tmp_path, 10_000)
    result = ExecutionResult("", "", "ok")
    size = len(result.to_json())
    for number in range(100):
        assert store.put(f"{number:064}", result)
        os.utime(tmp_path / "00" / f"{number:064}.json", (number, number))
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.json")) <= 10_000
    assert store.get(f"{99:064}") == result
    assert store.get(f"{0:064}") is None
    assert not store.put("a", ExecutionResult("x" * 10_000, "", "ok"))
    assert len(list(tmp_path.rglob("*.json"))) >= 10_000 * 0.8 // size - 1
    assert list(tmp_path.rglob("*.tmp")) == []
