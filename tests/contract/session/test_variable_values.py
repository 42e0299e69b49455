"""Values of variables, from the caller to the kernel and back."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kernelexec import AsyncExecutor, Executor, Session
from kernelexec.errors import InvalidRequest, Refused, UnknownVariable
from tests.conftest import settings_of

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

VALUES: dict[str, Any] = {
    "json": {"a": [1, 2.5, None, True, "ü"]},
    "python": ({1, 2}, (3, b"\0"), {1: dt.date(2020, 1, 1)}, 2**70),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_goes_there_and_back(session: Session, value: Any) -> None:
    session.put("x", value)
    assert session.get("x") == session["x"] == value
    assert session.execute("type(x).__name__").value == type(value).__name__


def test_an_array_is_writable_on_both_sides(session: Session) -> None:
    session["a"] = np.arange(3)
    assert session.execute("a[0] = 7\na.sum().item()").value == 10
    actual = session["a"]
    actual[1] = 0
    assert (actual.tolist(), session["a"].tolist()) == ([7, 0, 2], [7, 1, 2])


def test_several_variables_are_set_at_once(session: Session) -> None:
    session.put({"a": 1, "b": 2}, c=3)
    session.put("d", None)
    assert session.execute("a, b, c, d").value == (1, 2, 3, None)
    assert {"a", "b", "c", "d"} <= set(session.names)


def test_no_notebook_and_no_file_has_them(session: Session) -> None:
    session.put("x", 1)
    session.get("x")
    assert session.execute("1").execution_count == 1
    session.save_notebook()
    assert "x" not in str(session.notebook and session.notebook.read_text(encoding="utf-8"))[:50]
    files = [path for path in (session.workspace / ".kernelexec").rglob("*") if path.is_file() and "venvs" not in path.parts]
    assert files == []


def test_a_session_is_a_mapping_of_its_variables(session: Session) -> None:
    session["x"] = 1
    assert ("x" in session, "y" in session, session.get("y", 5), session.get("x", 5)) == (True, False, 5, 1)
    assert ([*session], len(session)) == (["x"], 1)
    del session["x"]
    assert ([*session], len(session), bool(session)) == ([], 0, True)
    assert ("x" in session, session.execute("'x' in globals()").value) == (False, False)
    for missing in (lambda: session["x"], lambda: session.get("x"), lambda: session.__delitem__("x")):
        with pytest.raises(UnknownVariable, match=r"^There is no variable 'x'\.$") as failure:
            missing()
        assert isinstance(failure.value, KeyError | InvalidRequest)
    session.execute("frame = 1")
    with pytest.raises(KeyError, match="did you mean 'frame'"):
        _ = session["frme"]


def test_values_need_no_name_that_cells_may_replace(session: Session) -> None:
    session.put({"get_ipython": 1, "print": 2, "type": 3})
    assert (session.get("get_ipython"), session.get("print")) == (1, 2)
    session.restart()


@pytest.mark.parametrize("names", [("1x",), ("a b",), ("class",), ("",), (5,), (None, 1), ("__builtins__",)])
def test_invalid_names_of_variables_are_refused(session: Session, names: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidRequest):
        session.put(*names)
    with pytest.raises(InvalidRequest):
        session.get(names[0])


def test_unsupported_values_are_refused_by_class_in_both_directions(session: Session) -> None:
    with pytest.raises(InvalidRequest, match=r"'x' cannot be sent: x\[0\] is of the class builtins.object"):
        session.put("x", [object()])
    session.execute("class Own: pass\nx = {'a': Own()}")
    with pytest.raises(Refused, match=r"'x' cannot be read: x\['a'\] is of the class __main__.Own"):
        session.get("x")
    assert session.execute("type(x).__name__").value == "dict"


def test_a_name_that_is_missing_is_refused_with_the_closest_one(session: Session) -> None:
    session.execute("table = 1")
    with pytest.raises(InvalidRequest, match=r"There is no variable 'tabel' \(did you mean 'table'\?\)"):
        session.get("tabel")


def test_a_value_of_the_kernel_is_not_run_here(session: Session, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = f"class Own:\n    def __reduce__(self):\n        return (open, ({str(mark)!r}, 'w'))\nx = Own()"
    session.execute(code)
    with pytest.raises(Refused):
        session.get("x")
    assert not mark.exists()


LIES: dict[str, str] = {
    "a pickle": "open(path, 'wb').write(__import__('pickle').dumps(5))",
    "nothing": "pass",
    "a link": "__import__('os').symlink('/etc/hostname', path)",
    "a directory": "__import__('os').mkdir(path)",
    "a pipe": "__import__('os').mkfifo(path)",
    "a sparse file": "f = open(path, 'wb'); f.truncate(2**40)",
    "another name": "real(variables, path, ['other'], limit)",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_kernel_that_lies_gives_an_error(session: Session, lie: str) -> None:
    session.execute(
        "module = __import__('importlib').import_module('launcher.features.value_transfer')\n"
        "real, other = module.write_variables, 5\ndef lie(variables, path, names, limit):\n"
        f"    __import__('os').makedirs(__import__('os').path.dirname(path), exist_ok=True)\n    {lie}\n    return {{}}\n"
        "module.write_variables = lie"
    ).raise_for_error()
    with pytest.raises(Refused, match="'real' cannot be read"):
        session.get("real")


def test_a_value_beyond_the_limit_is_refused_in_both_directions(kind: str, tmp_path: Path) -> None:
    isolation, config = settings_of(kind)
    with Executor(isolation, workspace=tmp_path, config={**config, "capacity": {"value_bytes": 1000}}) as executor:
        session = executor.session("a")
        session.put("x", b"x" * 1000)
        with pytest.raises(InvalidRequest, match="more than 1000 bytes"):
            session.put("x", b"x" * 1001)
        session.execute("y = x * 2")
        with pytest.raises(Refused, match="more than 1000 bytes"):
            session.get("y")


def test_values_wait_for_the_running_cell_and_for_one_another(kind: str, tmp_path: Path) -> None:
    async def steps() -> list[Any]:
        isolation, config = settings_of(kind)
        async with AsyncExecutor(isolation, workspace=tmp_path, config=config) as executor:
            session = await executor.session("a")
            begun = asyncio.Event()
            code = "import time\nprint('begun', flush=True)\ntime.sleep(0.5)\nx = 1"
            cell = asyncio.create_task(session.execute(code, on_output=lambda _: begun.set()))
            await begun.wait()
            before = asyncio.create_task(session.get("x"))
            await session.put("x", 2)
            return [await before, await session.get("x"), (await cell).ok]

    assert asyncio.run(steps()) == [1, 2, True]


def test_a_table_without_pyarrow_is_refused_with_the_way_out(session: Session) -> None:
    import pandas as pd  # noqa: PLC0415 - a large library, for this test only

    with pytest.raises(InvalidRequest, match="pyarrow is not installed, and is needed to send x"):
        session.put("x", pd.DataFrame({"a": [1]}))
    if session.execute("import pandas as pd\nx = pd.DataFrame({'a': [1]})").ok:
        with pytest.raises(Refused, match=r"pyarrow is not installed, and is needed to (?:send x|read it)"):
            session.get("x")


def test_inputs_are_set_before_their_cell(session: Session) -> None:
    result = session.execute("x, y = y, x\nx", inputs={"x": 1, "y": (2, None)})
    assert result.value == (2, None)
    assert session.get("y") == 1
    assert session.execute("x", inputs={}).value == (2, None)


def test_inputs_of_other_cells_are_refused_before_anything_runs(session: Session) -> None:
    session.put("x", 0)
    for arguments, reason in (
        ({"code": "ls", "language": "bash"}, "variables of Python cells"),
        ({"code": "!ls"}, "variables of Python cells"),
        ({"code": "x", "request_id": "a"}, "not repeated with a request_id"),
        ({"code": "x", "inputs": [("x", 1)]}, "must be a mapping"),
        ({"code": "x", "inputs": {"a b": 1}}, "'a b' is no name"),
        ({"code": "x", "inputs": {"x": object()}}, "has no form here"),
        ({"code": "x", "timeout": -1}, "timeout=-1"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            session.execute(**{"inputs": {"x": 1}, **arguments})  # type: ignore[arg-type]  # wrong ones
    assert session.get("x") == 0


SMALL_VALUES: dict[str, Any] = {
    "np.float64(1.5)": np.float64(1.5),
    "[np.int32(3), 1]": [np.int32(3), 1],
    "np.arange(3)": np.arange(3),
    "float('inf')": float("inf"),
    "{'a': dt.date(2020, 1, 2)}": {"a": dt.date(2020, 1, 2)},
    "decimal.Decimal('1.50')": decimal.Decimal("1.50"),
    "pd.Timestamp('2020-01-02')": pd.Timestamp("2020-01-02"),
    "frozenset({1}), range(3)": (frozenset({1}), range(3)),
}


@pytest.mark.shared_session
def test_a_cells_value_may_be_of_other_classes_than_built_in_ones(session: Session) -> None:
    session.execute("import datetime as dt, decimal, numpy as np, pandas as pd")
    for code, value in SMALL_VALUES.items():
        actual = session.execute(code).value
        assert type(actual) is type(value), code
        assert np.array_equal(actual, value) if isinstance(value, np.ndarray) else actual == value
    assert np.isnan(session.execute("float('nan')").value)


LARGE_VALUES = ("np.zeros(10**5)", "object()", "type('Own', (int,), {})(1)", "pd.Index(range(10**5))")


@pytest.mark.shared_session
def test_a_cells_value_of_another_class_or_size_is_refused(session: Session) -> None:
    session.execute("import numpy as np, pandas as pd")
    for code in LARGE_VALUES:
        result = session.execute(code)
        assert result.ok
        with pytest.raises(InvalidRequest, match=r"session.get\('_'\) returns the newest value"):
            _ = result.value
