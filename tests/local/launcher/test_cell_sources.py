"""Sources of functions and classes of cells, and processes that get them by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelexec import Executor, Session

DEFINITIONS = """import dataclasses, enum, functools, inspect, typing

def plain(x):
    return x + 1

@functools.lru_cache
def cached(x):
    return x

def traced(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@traced
def decorated(x):
    return x

@dataclasses.dataclass(frozen=True)
class Point:
    x: int = 1
    y: int = 2

class Empty(int): pass

class Outer:
    limit = 3
    class Inner:
        value: int
    @property
    def double(self):
        return self.limit * 2

class Colour(enum.Enum):
    RED = 1

class Row(typing.NamedTuple):
    a: int

square = lambda x: x * x
"""
#: The first and the last line of each source.
SOURCES = {
    "plain": ("def plain(x):", "return x + 1"),
    "cached": ("@functools.lru_cache", "return x"),
    "decorated": ("@traced", "return x"),
    "Point": ("@dataclasses.dataclass(frozen=True)", "y: int = 2"),
    "Empty": ("class Empty(int): pass", "class Empty(int): pass"),
    "Outer": ("class Outer:", "return self.limit * 2"),
    "Outer.Inner": ("class Inner:", "value: int"),
    "Outer.double.fget": ("@property", "return self.limit * 2"),
    "Colour": ("class Colour(enum.Enum):", "RED = 1"),
    "Row": ("class Row(typing.NamedTuple):", "a: int"),
    "square": ("square = lambda x: x * x", "square = lambda x: x * x"),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path_factory.mktemp("workspace")) as executor:
        opened = executor.session()
        opened.execute(DEFINITIONS).raise_for_error()
        yield opened


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_of_a_definition_of_a_cell_is_found(session: Session, name: str) -> None:
    result = session.execute(f"print(inspect.getsource({name}).strip())")
    lines = [line.strip() for line in result.text.splitlines()]
    assert (lines[0], lines[-1]) == SOURCES[name]


def test_the_source_is_the_newest_definitions_and_an_older_object_keeps_its_own(session: Session) -> None:
    session.execute("class Twice:\n    a: int\n    def f(self): return 1\nfirst = Twice")
    session.execute("@dataclasses.dataclass\nclass Fields:\n    a: int\nolder = Fields")
    session.execute("class Twice:\n    b: int\n    def f(self): return 2\n@dataclasses.dataclass\nclass Fields:\n    b: int")
    names = ("first", "Twice", "older", "Fields", "first.f", "Twice.f")
    texts = [session.execute(f"print(inspect.getsource({name}))").text for name in names]
    assert [("return 1" in text or "a: int" in text, "return 2" in text or "b: int" in text) for text in texts] == [
        *[(True, False), (False, True)] * 3
    ]


def test_a_cell_with_a_magic_and_a_failing_cell_have_sources_too(session: Session) -> None:
    session.execute("!true\nclass Magical: pass\n1 / 0")
    assert session.execute("print(inspect.getsource(Magical))").stdout.strip() == "class Magical: pass"
    assert "class Point" in session.execute("Point??").text
    assert "class Point" in session.execute("print(inspect.getsourcefile(Point), inspect.getsource(Point))").text


def test_a_class_without_source_is_an_error_as_before(session: Session) -> None:
    result = session.execute("inspect.getsource(type('Made', (), {'__module__': '__main__'}))")
    assert result.error is not None
    assert (result.error.ename, result.error.evalue) == ("OSError", "source code not available")
    result = session.execute("inspect.getsource(int)")
    assert result.error is not None
    assert result.error.ename == "TypeError"


WORK = """import concurrent.futures as futures, math, multiprocessing, os
import multiprocessing as mp
from dataclasses import dataclass
factor, table = 3, {"a": 1}
half = lambda x: x / 2
@dataclass
class Pair:
    a: int
    b: int = 0
    def total(self): return self.a + self.b
start = Pair(1, 2)
def work(x, default=factor):
    return half(math.floor(x)) * factor + table["a"] + start.total() + default
def make(x): return Pair(x, os.getpid() != parent)
async def later(): pass
parent = os.getpid()
"""
RUNS = {
    "a pool": "with mp.get_context({!r}).Pool(1) as pool: print(pool.map_async(work, [4]).get(30))",
    "an executor": "with futures.ProcessPoolExecutor(1, mp.get_context({!r})) as e: print(list(e.map(work, [4])))",
    "a process": "p = mp.get_context({!r}).Process(target=print, args=(Pair(1, 2),)); p.start(); p.join()",
    "a result": "with mp.get_context({!r}).Pool(1) as pool: print(pool.map_async(make, [4]).get(30)[0].total())",
}
TEXTS = {"a pool": "[13.0]\n", "an executor": "[13.0]\n", "a process": "Pair(a=1, b=2)\n", "a result": "5\n"}


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("run", RUNS)
def test_a_process_has_the_functions_and_classes_of_cells(session: Session, run: str, method: str) -> None:
    session.execute(f"import warnings; warnings.simplefilter('ignore')\n{WORK}").raise_for_error()
    result = session.execute(RUNS[run].format(method), timeout=60)
    assert result.text == TEXTS[run]


def test_definitions_and_runs_in_one_cell_and_changes_of_values(session: Session) -> None:
    code = "import multiprocessing as mp\nscale = {}\ndef scaled(x): return x * scale\n"
    code += "with mp.get_context('spawn').Pool(1) as pool: print(pool.map_async(scaled, [2]).get(30))"
    assert [session.execute(code.format(n), timeout=60).text for n in (2, 5)] == ["[4]\n", "[10]\n"]


def test_a_spawned_process_finds_modules_beside_the_cells(session: Session) -> None:
    session.files.write("beside.py", "def double(x): return x * 2")
    code = "import beside\nimport multiprocessing as mp\n"
    code += "with mp.get_context('spawn').Pool(1) as pool: print(pool.map_async(beside.double, [2]).get(30))"
    assert session.execute(code, timeout=60).text == "[4]\n"


DEFINED_IN = {
    "a timed cell": "%%time\ndef inner(x): return x * 2",
    "a captured cell": "%%capture\ndef inner(x): return x * 2",
    "a block": "if True:\n    try:\n        import no_such_module\n    except ImportError:\n        def inner(x): return x * 2",
    "a cell with magics": "%pwd\ndef inner(x): return x * 2\n!true",
    "a cell that fails": "def inner(x): return x * 2\n1 / 0",
}


@pytest.mark.parametrize("cell", DEFINED_IN.values(), ids=DEFINED_IN)
def test_a_process_has_functions_wherever_they_are_defined(session: Session, cell: str) -> None:
    session.execute("inner = None")
    session.execute(cell)
    code = (
        "import multiprocessing as mp\nwith mp.get_context('spawn').Pool(1) as pool: print(pool.map_async(inner, [2]).get(30))"
    )
    assert session.execute(code, timeout=60).text == "[4]\n"


def test_a_value_that_cannot_be_copied_costs_no_other(session: Session) -> None:
    code = "import multiprocessing as mp, threading\nlock, big, size = threading.Lock(), bytes(70_000_000), 7\n"
    code += "def measure(x): return 'lock' in globals(), 'big' in globals(), size\ndef use(): return lock, big\n"
    code += "with mp.get_context('spawn').Pool(1) as pool: print(pool.map_async(measure, [2]).get(30))"
    assert session.execute(code, timeout=60).text == "[(False, False, 7)]\n"


def test_a_function_that_no_process_can_get_has_a_hint(session: Session) -> None:
    result = session.execute("import pickle; pickle.dumps(lambda: 1)")
    assert result.diagnosis is not None
    assert result.diagnosis.hints == ("Define it with `def` or `class` at the top level of a cell, or use threads.",)
