"""Results of pure cells that are found again after the same cells, without running them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelexec import ExecutionResult, Executor, InvalidConfig, Session
from kernelexec.cache import PurityChecker, ResultStore
from kernelexec.launcher.features import pickles
from tests.support.engine import IMAGE, needs_engine

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_a_hit_leaves_the_kernel_as_it_is",)
KINDS = ["local", pytest.param("container", marks=needs_engine)]


@pytest.fixture(params=KINDS)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(location: Path, isolation: str = "local", **options: Any) -> Iterator[Session]:
    """A new session of the same name, in the same workspace and with the same cache as every other one of this place."""
    config = {"cache": str(location / "cache"), "confinement": {"level": "off"}, "container": {"image": IMAGE}, **options}
    with Executor(isolation, workspace=location / "workspaces", config=config) as executor:
        yield executor.session("s")


def run(session: Session, *cells: str) -> list[ExecutionResult]:
    return [session.execute(cell) for cell in cells]


def hits(results: list[ExecutionResult]) -> list[bool]:
    return [result.cached for result in results]


def stored(location: Path) -> list[Path]:
    return sorted((location / "cache").rglob("*.json"))


DEFINED = "def f(): return x * 10"


def test_the_value_of_now_is_shown_whatever_was_before(tmp_path: Path, isolation: str) -> None:
    for _ in range(2):
        with opened(tmp_path, isolation) as session:
            results = run(session, DEFINED, "x = 1", "f()", "x = 2", "f()")
            assert [result.text for result in results] == ["", "", "10", "", "20"]
    assert hits(results) == [False, False, True, False, True]
    with opened(tmp_path, isolation) as session:  # the same cells in another order
        results = run(session, DEFINED, "x = 2", "f()", "x = 1", "f()")
        assert [result.text for result in results] == ["", "", "20", "", "10"]
        assert hits(results) == [False] * 5


def test_a_second_process_finds_them_and_the_cell_is_not_run(tmp_path: Path) -> None:
    program = """
import sys
from kernelexec import Executor
config = {"cache": sys.argv[2], "confinement": {"level": "off"}, "preload": []}
with Executor("local", workspace=sys.argv[1], config=config) as executor:
    session = executor.session(sys.argv[3])
    session.execute("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)")
    results = [session.execute(cell) for cell in ("x = 27", "f(x)", "x + 1")]
    print(*(int(result.cached) for result in results), results[1].text.strip(), results[1].execution_count)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "workspaces"), str(tmp_path / "cache")]
    for name, expected in (("s", "0 0 0 196418 3\n"), ("s", "0 1 1 196418 None\n"), ("other", "0 0 0 196418 3\n")):
        assert subprocess.run([*command, name], check=True, capture_output=True, text=True).stdout == expected


def test_a_hit_leaves_the_kernel_as_it_is(tmp_path: Path, isolation: str) -> None:
    cells = ("things = [1]", "len(things)", "print(things)")
    for _ in range(2):
        with opened(tmp_path, isolation) as session:
            results = run(session, *cells)
            assert [result.text for result in results] == ["", "1", "[1]\n"]
    assert hits(results) == [False, True, True]
    with opened(tmp_path, isolation) as session:
        result = run(session, *cells)[-1]
        assert (result.state, result.execution_count, result.kernel_epoch) == ("kept", None, 1)
        assert "the cell did not run" in result.notes[0]
        after = session.execute("things.append(2); things")
        assert (after.cached, after.text, after.notes) == (False, "[1, 2]", ())


def test_a_cell_that_changes_an_object_always_runs(tmp_path: Path) -> None:
    cells = ("things = []; more = iter('abc'); import collections", "things.append(1)", "next(more)", "len(things), list(more)")
    for _ in range(2):
        with opened(tmp_path) as session:
            results = run(session, *cells)
            assert results[-1].text == "(1, ['b', 'c'])"
            assert hits(results) == [False] * 4


def test_the_values_that_a_cell_reads_are_part_of_its_key(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("one")
    cells = (f"text = open({str(tmp_path / 'data')!r}).read()", "text.upper()")
    for content, hit in (("one", False), ("two", False), ("one", True)):
        (tmp_path / "data").write_text(content)
        with opened(tmp_path) as session:
            result = run(session, *cells)[1]
            assert (result.text, result.cached) == (repr(content.upper()), hit)


NEVER = {
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
    "names of files": "import glob\nglob.glob('*') is None",
    "a place in memory": "object()",
    "a thread": "import threading\nthreading.Thread(target=print).start()",
}


PURE: dict[str, tuple[str, str, set[str]]] = {
    "a sum": ("x = [1]", "sum(x) + 1", {"x"}),
    "a function": ("def f(a, b=2):\n    return a + b + x\nx = 1", "print(f(1), sep='')", {"x"}),
    "a loop": ("def f(n):\n    s = 0\n    for i in range(n):\n        s += i\n    return s", "f(9)", set()),
    "functions that call each other": ("def f(n): return n and g(n - 1)\ndef g(n): return n and f(n - 1)", "f(9)", set()),
    "a function that is handed on": ("def f(a): return -a\nx = [1]", "sorted(x, key=f)", {"x"}),
    "a variable of a comprehension": ("x = [1]", "[x for x in x]", {"x"}),
    "a variable beside one of a comprehension": ("def f(): return x, [x for x in 'a']\nx = 1", "f()", {"x"}),
    "text": ("x = 'a b'", "f'{x!r:>9}', [w.upper() for w in x.split()]", {"x"}),
    "a module of functions": ("import math", "math.sqrt(2) * math.pi", set()),
    "a table": ("import pandas as pd\ndf = pd.DataFrame({'a': [1]})", "df.groupby('a').sum().head()", {"df"}),
    "an attribute of a table": (
        "import pandas as pd\ndf = pd.DataFrame({'a': ['b']})",
        "df['a'].str.upper(), df.shape",
        {"df"},
    ),
    "a condition": ("x = 1", "if x: print(x)\nassert x", {"x"}),
}
IMPURE = {
    "an object that is changed": "x = []\nx.append(1)",
    "a function that changes one": "x = []\ndef f(): x.append(1)\nf()",
    "a function that changes its argument": "x = [1]\ndef f(a): a += [2]\nf(x)",
    "another name of an object that is changed": "x = [1]\ndef f():\n    a = x\n    a += [2]\nf()",
    "a loop over objects that are changed": "x = [[1]]\ndef f():\n    for a in x: a += [2]\nf()",
    "an item": "x = [1]\ndef f(): x[0] = 2\nf()",
    "an attribute": "class A: pass\nx = A()\ndef f(): x.a = 2\nf()",
    "a global": "def f():\n    global x\n    x = 1\nf()",
    "a function of another name": "from collections import deque\ndeque()",
    "a function that was bound anew": "def f(): return 1\nf = print\nf()",
    "a function of a failed cell": "def f(): return 1\ndef f(): return x",
    "a method that is handed on": "x = []\nlist(map(x.append, [1]))",
    "a builtin that was bound anew": "len = print\nlen(1)",
    "a result of this side": "_",
    "a default that may change": "def f(a=[]): return a\nf()",
    "a decorated function": "import functools\n@functools.cache\ndef f(): return 1\nf()",
    "a name that is bound": "(x := 1)",
    "a name that is deleted": "x = 1\ndel x",
    "an import": "import math",
    "an argument that is written": "import numpy as np\nx = np.ones(2)\nx.sum(out=x)",
    "an argument that is written by its place": "import numpy as np\nx = np.ones(2)\nx.cumsum(0, None, x)",
    "a table that is changed": "import pandas as pd\ndf = pd.DataFrame()\ndf.dropna(inplace=True)",
    "names that are bound unseen": "exec('def f(): pass')\n1",
    "a magic": "%time 1",
    "what cannot be parsed": "1 +",
    "nothing": "",
}


@pytest.mark.parametrize(("before", "cell", "variables"), PURE.values(), ids=PURE)
def test_a_pure_cell_is_known_with_the_variables_that_it_reads(before: str, cell: str, variables: set[str]) -> None:
    checker = PurityChecker()
    checker.record_cell(before, ok=True)
    assert checker.find_variables(cell) == frozenset(variables)


@pytest.mark.parametrize("source", [*IMPURE.values(), *NEVER.values()], ids=[*IMPURE, *NEVER])
def test_a_cell_that_may_do_more_is_not_pure(source: str) -> None:
    checker = PurityChecker()
    before, _, cell = source.rpartition("\n")
    if before:
        checker.record_cell(before, ok=not source.endswith("return x"))
    assert checker.find_variables("f()" if source.endswith("return x") else cell) is None


def test_only_plain_data_has_a_fingerprint() -> None:
    np, pd = pytest.importorskip("numpy"), pytest.importorskip("pandas")

    class List(list[int]):
        pass

    plain: list[object] = [1, "a", [1, {"a": (2, None)}], b"", {1}, range(3), np.arange(3), pd.DataFrame({"a": ["b"]}), 1 << 99]
    other: list[object] = [iter([1]), List(), [List()], print, int, os, object(), (x for x in "a"), lambda: 1, pd.read_csv]
    digests = [pickles.fingerprint(["x"], {"x": value}) for value in plain]
    assert None not in digests
    assert len(set(digests)) == len(plain)
    assert [pickles.fingerprint(["x"], {"x": value}) for value in other] == [None] * len(other)
    assert pickles.fingerprint(["x"], {}) is None
    assert pickles.fingerprint(["x"], {"x": bytes(pickles.FINGERPRINT_BYTES_MAX)}) is None


def test_nothing_of_a_failed_cell_is_stored(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            assert not session.execute("1 / 0").cached
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "most"),
    [({"budgets": {"timeout": 0.5}}, "10 ** 10"), ({"output": {"stream_bytes": 1024}}, "10")],
    ids=["timeout", "too much output"],
)
def test_what_did_not_end_whole_is_not_found(tmp_path: Path, options: dict[str, Any], most: str) -> None:
    for _ in range(2):
        with opened(tmp_path, **options) as session:
            result = session.execute(f"print('x' * 100_000, sum(n for n in range({most})))")
            assert (result.ok, result.truncated, result.cached) == (most == "10", most == "10", False)


def test_other_settings_are_another_key(tmp_path: Path) -> None:
    for value, hit in (("1", False), ("2", False), ("1", True)):
        with opened(tmp_path, environment={"set": {"MODE": value}}) as session:
            assert session.execute("1 + 1").cached is hit


def test_another_workspace_is_another_key_since_its_files_can_change_any_result(tmp_path: Path) -> None:
    changes = "get_ipython().display_formatter.formatters['text/plain'].for_type(int, lambda _, p, cycle: p.text('4711'))"
    config = {"cache": str(tmp_path / "cache"), "confinement": {"level": "off"}}
    with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
        for name, module, text in (("changed", f"from IPython import get_ipython\n{changes}", "4711"), ("other", "", "2")):
            session = executor.session(name)
            session.files.write("helpers.py", module)
            result = run(session, "import helpers", "1 + 1")[-1]
            assert (result.text, result.cached) == (text, False)


def test_another_cell_before_is_another_key(tmp_path: Path) -> None:
    for cells, hit in ((["1"], False), (["0", "1"], False), (["!true", "1"], False), (["1"], True)):
        with opened(tmp_path) as session:
            assert run(session, *cells)[-1].cached is hit


def test_nothing_is_found_after_variables_were_loaded(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(tmp_path) as session:
            run(session, "x = 1")
            session.snapshot()
            assert not session.execute("x + 1").cached


KILLED = """
import os, signal, sys
from kernelexec import Executor
config = {"cache": sys.argv[2], "confinement": {"level": "off"}, "container": {"image": sys.argv[3]}}
executor = Executor("container", workspace=sys.argv[1], config=config).__enter__()
session = executor.session("s")
results = [session.execute(cell).cached for cell in ("x = 6", "x * 7")]
print(*results, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_engine
def test_nothing_is_found_in_a_copy_of_a_kernel(tmp_path: Path) -> None:
    """Its first cell follows others: the chain of cells of a new kernel is another one."""
    with opened(tmp_path) as session:
        assert not session.execute("1 + 1").cached
    with opened(tmp_path) as session:
        assert session.execute("1 + 1").cached
        checkpoint = session.checkpoint()
        session.restore(checkpoint)
        with session.branch() as branch:
            for each in (session, branch):
                assert hits(run(each, "1 + 1", "1 + 1")) == [False, False]


def test_nothing_is_found_in_a_kernel_of_a_dead_owner(tmp_path: Path) -> None:
    with opened(tmp_path, "container") as session:
        run(session, "x = 6", "x * 7")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "workspaces"), str(tmp_path / "cache"), IMAGE]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stdout == "False True\n"
    with opened(tmp_path, "container") as session:
        result = session.execute("x * 7")
        assert (result.text, result.state, result.kernel_epoch, result.cached) == ("42", "kept", 1, False)


def test_a_restart_begins_again(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "x = 1", "x")
        session.restart()
        lost, again = run(session, "x = 1", "x")
        assert (lost.state, lost.cached, again.cached, again.text) == ("lost", False, True, "1")
        session.restart()
        assert session.execute("2").cached is False  # the first result of a kernel reports the lost state
        assert session.execute("'x' in globals()").text == "False"


def test_a_follower_of_a_cached_cell_gets_its_outputs(tmp_path: Path) -> None:
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
    cell = "len('abc')"
    with opened(tmp_path) as session:
        run(session, cell)
    with opened(tmp_path, rules={"forbidden_names": ["len"]}) as session:
        result = session.execute(cell)
        assert (result.status, result.cached) == ("aborted", False)


def test_a_damaged_one_is_none(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\x00" * 100):
        with opened(tmp_path) as session:
            run(session, "1 + 1")
        (path,) = stored(tmp_path)
        path.write_bytes(content)
        with opened(tmp_path) as session:
            result = session.execute("1 + 1")
            assert (result.cached, result.text) == (False, "2")
        for path in stored(tmp_path):
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
        run(session, "import os; key = os.environ['KEY']", "key[::-1]")
    assert stored(tmp_path) == []


def test_files_are_private(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        run(session, "1")
    (path,) = stored(tmp_path)
    modes = [os.stat(location).st_mode & 0o777 for location in (path, path.parent, path.parent.parent)]  # noqa: PTH116 - a mode
    assert modes == [0o600, 0o700, 0o700]


def test_a_directory_that_cells_or_others_could_write_is_refused(tmp_path: Path) -> None:
    for directory in (tmp_path / "workspaces" / "cache", tmp_path):
        with pytest.raises(InvalidConfig, match="where cells can write"):
            Executor("local", workspace=tmp_path / "workspaces", config={"cache": str(directory)})
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "file").write_text("")
    for name, reason in (("open", "must be private to this user"), ("file", "File exists")):
        with pytest.raises(InvalidConfig, match=reason):
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
    store = ResultStore(tmp_path, 10_000)
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
