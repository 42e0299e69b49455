"""Looking into a session, idle or busy: its variables, names and code, and none of it hangs, costs state, or runs user code."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec import (
    AsyncExecutor,
    Completion,
    Executor,
    InvalidCode,
    InvalidRequest,
    InvalidTimeout,
    KernelNotAnswering,
    Session,
    Variable,
)
from tests.conftest import EVERY_KIND, KINDS
from tests.support.night import at_night, named_cases
from tests.support.pace import BOUND

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

#: The step that ends a cell is asserted here.
GRACE = 2.0
#: A class that hangs every inspection of itself and of its instances.
TRAPS = """
import time
def hang(*args): time.sleep(1000)
class Meta(type):
    __hash__ = __getattribute__ = __instancecheck__ = __subclasscheck__ = __eq__ = __len__ = __repr__ = hang
class Trap(metaclass=Meta):
    __repr__ = __len__ = __sizeof__ = __getattr__ = __iter__ = __str__ = __eq__ = hang
    __class__ = property(hang)
class Items(dict):
    __len__ = __iter__ = items = keys = __sizeof__ = hang
trap = Trap()
within = [trap, {1: trap}, (trap, 'text')]
items = Items(a=1)
"""

#: Hangs the thread that looks, not the one that runs the cells.
HANG_ELSEWHERE = """
import threading, time
def hang(*args):
    if threading.current_thread() is not threading.main_thread(): time.sleep(1000)
    return 0
"""


def seen(session: Session, *names: str) -> dict[str, Variable]:
    return {variable.name: variable for variable in session.variables(names=names or None, wait=BOUND)}


def files_of(session: Session) -> list[bool]:
    return [file.is_file() for file in (session.connection_file,) if file is not None]


def client_of(session: Session) -> BlockingKernelClient:
    client = BlockingKernelClient()
    client.load_connection_file(str(session.connection_file))
    client.start_channels()
    client.wait_for_ready(timeout=BOUND)
    return client


def test_the_variables_are_the_names_that_the_user_gave(session: Session) -> None:
    assert session.variables().total == 0
    session.execute("import os\nx = 40\n_hidden = 1\ndef f(a, *, b): pass\nclass C: pass\nx")
    actual = session.variables()
    assert actual.names == ("C", "f", "os", "x")
    assert (len(actual), actual.total) == (4, 4)
    assert [(variable.type, variable.text) for variable in actual] == [
        ("class", "__main__.C"),
        ("function", "f(a, b)"),
        ("module", "os"),
        ("int", "40"),
    ]


def test_arrays_and_tables_have_shapes_and_sizes(session: Session) -> None:
    code = "import numpy as np, pandas as pd\na = np.zeros((3, 4))\ndf = pd.DataFrame({'x': [1, 2], 'y': [0.5, 1]})\ns = df.x"
    assert session.execute(code).ok
    actual = seen(session, "a", "df", "s")
    assert actual["a"] == Variable("a", "numpy.ndarray", (3, 4), 96, "float64 [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ...]")
    assert (actual["df"].type, actual["df"].shape, actual["df"].text) == ("pandas.DataFrame", (2, 2), "x: int64, y: float64")
    assert (actual["s"].type, actual["s"].shape, actual["s"].text) == ("pandas.Series", (2,), "x: int64")
    assert (actual["df"].size_bytes or 0) > (actual["s"].size_bytes or 0) > 16


def test_no_code_of_the_users_runs_for_a_look(session: Session) -> None:
    assert session.execute(TRAPS).ok
    actual = seen(session)
    assert actual["trap"] == Variable("trap", "__main__.Trap", None, None, "<__main__.Trap object>")
    assert actual["Trap"].type == "class"
    assert actual["items"] == Variable("items", "__main__.Items", None, None, "<__main__.Items object>")
    object_ = "<__main__.Trap object>"
    assert actual["within"].text == f"[{object_}, {{1: {object_}}}, ({object_}, 'text')]"
    assert session.execute("1 + 1").text == "2"


#: What a look could ask by the way: a key that lies where a name is looked up, a name and an axis of classes of the user's.
ASKED = {
    "key": "class Key:\n    __eq__ = hang\n    def __hash__(self): return hash('x')\nglobals().update({Key(): 0, 'x': 1})",
    "class": "class Name(str):\n    __format__ = __len__ = hang\nclass x: pass\nx.__qualname__ = Name('x')",
    "function": "class Name(str):\n    __format__ = hang\ndef x(): pass\nx.__qualname__ = Name('x')",
    "axis": "import pandas as pd\nx = pd.DataFrame([[1]])\nclass Axis(pd.RangeIndex): pass\n"
    "x.columns = Axis._simple_new(range(1))\nAxis.__len__ = Axis.__getitem__ = hang",
}


@pytest.mark.parametrize("code", named_cases(ASKED, {"key", "class"}))
def test_a_look_asks_nothing_of_the_users_by_the_way(session: Session, code: str) -> None:
    assert session.execute(f"{HANG_ELSEWHERE}\n{code}").ok
    assert seen(session, "x")["x"].name == "x"


@pytest.mark.parametrize("code", ["import time; time.sleep(600)", "while True: pass"])
def test_the_variables_are_seen_while_a_cell_runs(session: Session, code: str) -> None:
    session.execute("x = 40")
    session.execute(f"y = 1\n{code}", wait=0.1, timeout=600)
    while "y" not in seen(session):
        assert session.busy
    assert set(seen(session)) - {"time"} == {"x", "y"}
    ended = session.interrupt()
    assert ended is not None
    assert (ended.state, ended.ended_by) == ("kept", "interrupt")


def test_cells_end_whatever_is_asked_just_before_they_begin(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """What the kernel says of a request on its control channel may be under way when it says that a cell begins."""
    chosen = random.Random(1)  # noqa: S311 - for many moments, not for secrets

    async def run() -> set[tuple[str, str, tuple[str, ...]]]:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session, results = await executor.session("s"), []
            for _ in range(200 if pytestconfig.getoption("nightly") else 50):
                look = asyncio.create_task(session.variables(wait=BOUND))
                await asyncio.sleep(chosen.uniform(0, 0.002))
                results.append(await session.execute("print(6 * 7)"))
                await look
        return {(result.status, result.text, result.notes) for result in results}

    assert asyncio.run(run()) == {("ok", "42\n", ())}


def test_a_kernel_that_holds_the_interpreters_lock_does_not_answer_and_loses_nothing(session: Session) -> None:
    holds = "ctypes.PyDLL(None).open(b'gate', os.O_RDONLY)"  # until there is a writer
    code = f"import ctypes, os\nx = 40\nos.mkfifo('gate')\n{holds}"
    running = session.execute(code, wait=0.01)
    reported = ""
    while session.busy and not reported:
        try:
            session.variables(wait=0.2)
        except KernelNotAnswering as exc:
            reported = str(exc)
    assert "did not answer in time" in reported
    (session.workspace / "gate").write_bytes(b"")
    assert session.wait_for(running.execution_id).result is not None
    assert session.execute("x").text == "40"
    assert session.variables(names=["x"]).names == ("x",)


def test_as_many_variables_are_returned_as_requested(session: Session) -> None:
    session.execute("globals().update({f'n{n:04}': n for n in range(1500)})")
    whole = session.variables(wait=BOUND)
    assert (len(whole), whole.total, whole.names[-1]) == (1000, 1500, "n0999")
    some = session.variables(limit=2)
    assert (some.names, some.total) == (("n0000", "n0001"), 1500)
    assert some.to_dict()["variables"][1]["text"] == "1"


def test_a_container_that_a_thread_changes_all_the_time_can_be_looked_at(session: Session) -> None:
    code = "import threading\nd, s, on = {}, set(), True\n"
    code += "def churn():\n    n = 0\n    while on:\n        n += 1; d[n] = n; s.add(n)\n"
    code += "        if n > 99: d.clear(); s.clear(); n = 0\n"
    session.execute(f"{code}threading.Thread(target=churn).start()")
    try:
        for _ in range(20):
            assert {"d", "s"} <= set(seen(session, "d", "s"))
    finally:
        assert session.execute("on = False").ok


def test_names_are_completed_and_described(session: Session) -> None:
    session.execute("value = 40\ndef double(n):\n    'Twice as much.'\n    return 2 * n")
    assert session.complete("x = val") == Completion(("value",), 4, 7)
    assert "double" in session.complete("dou + 1", 3).matches
    assert "Twice as much." in (session.inspect("double") or "")
    assert "return 2 * n" in (session.inspect("double(", 3, detail=1) or "")
    assert session.inspect("nothing_of_that_name") is None


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("1 + 1", ("complete", "")),
        ("def f():", ("incomplete", "    ")),
        ("1 1", ("invalid", "")),
        ("if 1:\n    x\n  y", ("invalid", "")),
        ("", ("complete", "")),
        ("%%bash\nls", ("incomplete", "")),
    ],
)
@pytest.mark.shared_session
def test_the_kernel_says_whether_code_can_be_run(session: Session, code: str, reported: tuple[str, str]) -> None:
    assert session.is_complete(code) == reported


def test_a_busy_kernel_is_asked_nothing_and_a_look_can_wait_for_the_cell(session: Session) -> None:
    running = session.execute("import time; time.sleep(600)", wait=0.01, timeout=600)
    for look in (session.complete, session.inspect, session.is_complete):
        with pytest.raises(KernelNotAnswering, match="is busy: a cell runs"):
            look("x", wait=0.05)
    session.interrupt(running.execution_id)
    session.execute("import time; value = 1; time.sleep(0.3)", wait=0.01)
    assert session.complete("valu", wait=BOUND).matches == ("value",)


@pytest.mark.parametrize("look", ["complete('trap.')", *at_night("inspect('trap')")])
def test_a_class_that_hangs_an_inspection_costs_neither_state_nor_the_next_cell(session: Session, look: str) -> None:
    session.execute(f"{TRAPS}\nx = 40")
    actual = eval(f"session.{look[:-1]}, wait={BOUND})", {"session": session})  # noqa: S307 - ours
    assert actual in (None, Completion((), 5, 5))
    after = session.execute("x")
    assert (after.text, after.state) == ("40", "kept")


def test_a_look_that_takes_too_long_is_reported_and_ends_before_the_next_cell(session: Session) -> None:
    session.execute(f"{TRAPS}\nx = 40")
    with pytest.raises(KernelNotAnswering, match="did not answer in time"):
        session.complete("trap.", wait=0.2)
    after = session.execute("x", timeout=BOUND)
    assert (after.text, after.state) == ("40", "kept")


def test_a_session_whose_kernel_died_says_so_and_starts_none_for_a_look(session: Session) -> None:
    assert files_of(session) == [True]
    session.execute("import os; os._exit(3)")
    assert files_of(session) == []
    for look in (session.variables, lambda: session.complete("x"), lambda: session.inspect("x")):
        with pytest.raises(KernelNotAnswering, match="has no living kernel"):
            look()
    assert session.kernel_epoch == 1
    session.execute("x = 1")
    assert session.variables().names == ("x",)


@pytest.mark.shared_session
def test_a_look_that_makes_no_sense_is_refused(session: Session) -> None:
    for cursor in (-1, 2, 0.5, True):
        with pytest.raises(InvalidRequest, match="from 0 to 1"):
            session.complete("x", cursor)  # type: ignore[arg-type]
    for limit in (0, 1001, True, "2"):
        with pytest.raises(InvalidRequest, match="from 1 to 1000"):
            session.variables(limit=limit)  # type: ignore[arg-type]
    for names in ("x", [1], ["x"] * 1001):
        with pytest.raises(InvalidRequest, match="a list of names"):
            session.variables(names=names)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="0, or 1"):
        session.inspect("x", detail=2)
    for code in ("\udc80", "\0", 3):
        with pytest.raises(InvalidCode):
            session.is_complete(code)  # type: ignore[arg-type]
    with pytest.raises(InvalidTimeout, match="wait"):
        session.variables(wait=0)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_variables_of_another_client_are_known_to_the_owner(kind: str, tmp_path: Path) -> None:
    with Executor(kind, workspace=tmp_path, config={**KINDS[kind], "checkpoints": "named"}) as executor:
        session = executor.session()
        session.execute("mine = 1")
        client = client_of(session)
        texts: list[str] = []
        client.execute_interactive(
            "theirs = mine + 1; print(theirs)", timeout=BOUND, output_hook=lambda m: texts.append(m["content"].get("text", ""))
        )
        assert "2\n" in texts
        assert set(seen(session)) == {"mine", "theirs"}
        assert session.execute("theirs").text == "2"
        client.stop_channels()
        lost = session.execute("import os; os._exit(1)")
        assert set(lost.lost_names) == {"mine", "theirs", "os"} - {"os"}


def test_another_clients_failing_cell_aborts_no_cell_of_the_owners(session: Session) -> None:
    client = client_of(session)
    client.execute("import time; time.sleep(0.5); 1/0", stop_on_error=True)
    assert session.execute("40 + 2").text == "42"
    client.stop_channels()
