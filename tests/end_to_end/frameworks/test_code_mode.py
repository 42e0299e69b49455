"""fastmcp's code mode on a session: code calls the server's tools, and its variables last."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP
from fastmcp.experimental.transforms.code_mode import CodeMode

from kernelexec import AsyncExecutor, ExecutionFailed, InvalidCode, InvalidRequest, InvalidWorkDir, SecurityError
from kernelexec.adapters.code_mode import ARGUMENTS_CHARS, SandboxProvider, build_cell
from tests.support.engine import IMAGE, needs_engine
from tests.support.pace import BOUND, slow, until

pytestmark = pytest.mark.nightly

KINDS = ["local", pytest.param("container", marks=needs_engine)]


@asynccontextmanager
async def provided(
    directory: Path, kind: str = "local", config: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[SandboxProvider]:
    async with AsyncExecutor(kind, workspace=directory, config={"container": {"image": IMAGE}, **(config or {})}) as executor:
        yield SandboxProvider(await executor.session(), **options)


def run(directory: Path, steps: Callable[[SandboxProvider], Awaitable[None]], kind: str = "local", **options: Any) -> None:
    async def whole() -> None:
        async with provided(directory, kind, **options) as provider:
            await steps(provider)
            assert left_behind(directory) == []

    asyncio.run(whole())


def left_behind(directory: Path) -> list[Path]:
    """Return what is in the directories of ours, besides the sessions' virtual environments."""
    return [path for own in directory.rglob(".kernelexec") for path in own.iterdir() if path.name != "venvs"]


def cell_of(code: str, *functions: str, inputs: Mapping[str, Any] | None = None) -> str:
    return build_cell(code, inputs=inputs or {}, functions=functions, token="t", folder="/w")  # noqa: S106 - no secret


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_in_code_mode_keeps_variables_between_runs(tmp_path: Path, kind: str) -> None:
    async def whole() -> None:
        async with provided(tmp_path, kind) as provider:
            server = FastMCP("shop", transforms=[CodeMode(sandbox_provider=provider)])

            @server.tool
            def price(item: str) -> int:
                return {"apple": 3, "pear": 4}[item]

            async with Client(server) as client:
                code = "prices = [(await call_tool('price', {'item': i}))['result'] for i in ('apple', 'pear')]\nreturn prices"
                first = await client.call_tool("execute", {"code": code})
                assert "[3,4]" in str(first.content[0].text).replace(" ", "")
                second = await client.call_tool("execute", {"code": "return sum(prices)"})
                assert "7" in str(second.content[0].text)
                failed = await client.call_tool("execute", {"code": "return 1 / 0"}, raise_on_error=False)
                assert failed.is_error
                assert "ZeroDivisionError" in str(failed.content[0].text)

    asyncio.run(whole())


def test_functions_inputs_and_values(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        async def slow(number: int, *, by: int = 1) -> dict[str, int]:
            await asyncio.sleep(0.05)
            return {"sum": number + by}

        def failing() -> None:
            raise LookupError("nothing there")

        functions: dict[str, Callable[..., Any]] = {"slow": slow, "failing": failing}
        code = "import asyncio\nfound = await asyncio.gather(*(slow(n, by=step) for n in range(20)))"
        code += "\nreturn [f['sum'] for f in found]"
        assert await provider.run(code, inputs={"step": 2}, external_functions=functions) == list(range(2, 22))
        assert await provider.run("len(found) + step") == 22
        assert await provider.run("x = 1") is None
        moved = "import os, tempfile\nos.chdir(tempfile.gettempdir())\nreturn (await slow(1))['sum']"
        assert await provider.run(moved, external_functions=functions) == 2
        text = 'text = f"""a\n  b{step}"""\nif step:\n    return text'
        assert await provider.run(text) == "a\n  b2"
        caught = "try:\n    await failing()\nexcept RuntimeError as exc:\n    return str(exc)"
        assert await provider.run(caught, external_functions=functions) == "LookupError: nothing there"

    run(tmp_path, steps)


def test_a_hundred_calls_run_at_the_same_time_and_all_are_answered(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        running, most = 0, 0

        async def count(number: int) -> int:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            await asyncio.sleep(0.05)
            running -= 1
            return number

        code = "import asyncio\nsum(await asyncio.gather(*(count(number) for number in range(250))))"
        assert await provider.run(code, external_functions={"count": count}) == sum(range(250))
        assert 50 < most <= 100

    run(tmp_path, steps)


def test_calls_beyond_the_memory_of_waiting_ones_are_refused(tmp_path: Path) -> None:
    code = """
import asyncio
tasks = [asyncio.ensure_future(hold('x' * 1_000_000)) for _ in range(40)]
await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
await release()
[str(answer) for answer in await asyncio.gather(*tasks, return_exceptions=True)]
"""

    async def steps(provider: SandboxProvider) -> None:
        released = asyncio.Event()

        async def hold(text: str) -> int:
            await released.wait()
            return len(text)

        functions: dict[str, Callable[..., Any]] = {"hold": hold, "release": released.set}
        answers = await provider.run(code, external_functions=functions)
        held = answers.count("1000000")
        assert 10 <= held <= 16
        assert sum(answer.startswith("too many function calls wait") for answer in answers) == 40 - held
        assert await provider.run("await hold('x')", external_functions=functions) == 1

    run(tmp_path, steps)


def test_failures_are_raised_and_the_state_is_kept(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        await provider.run("x = 41")
        with pytest.raises(InvalidCode):
            await provider.run("x = = 1")
        with pytest.raises(ExecutionFailed, match="ZeroDivisionError"):
            await provider.run("x / 0")
        with pytest.raises(ExecutionFailed, match="too large"):
            await provider.run("return 'x' * 80_000_000")
        with pytest.raises(TypeError):
            await provider.run("x", inputs={"bad": object()})
        assert await provider.run("x + 1") == 42

    run(tmp_path, steps)


def test_a_run_that_takes_too_long_is_raised_and_the_state_is_kept(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        await provider.run("x = 41")
        with pytest.raises(ExecutionFailed, match="state kept"):
            await provider.run("import time\ntime.sleep(600)")
        assert await provider.run("x + 1") == 42

    run(tmp_path, steps, timeout=slow(2))


def test_a_run_that_is_cancelled_ends_and_the_next_is_in_step(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        await provider.run("x = 1")
        running = asyncio.create_task(provider.run("import time\nopen('begun', 'w').close()\ntime.sleep(600)"))
        await asyncio.to_thread(until, (tmp_path / "default" / "begun").exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.wait_for(provider.run("x"), BOUND) == 1

    run(tmp_path, steps)


def test_only_functions_that_were_given_are_called(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        called: list[str] = []
        forged = """
import inspect, __main__
from IPython.display import display
asked = {'token': 'guessed', 'place': '../x.json', 'name': 'known', 'args': [], 'kwargs': {}}
display({'application/vnd.kernelexec.call+json': asked}, raw=True)
return 'done'
"""
        assert await provider.run(forged, external_functions={"known": lambda: called.append("known")}) == "done"
        assert called == []
        with pytest.raises(ExecutionFailed, match="NameError"):
            await provider.run("await unknown()")

    run(tmp_path, steps)


TOP_LEVEL = [
    ("x: int = 41\nx + 1", 42),
    ("x: int = 41\nif x:\n    y: int = x + 1\n    return y", 42),
    ("from math import *\nif floor(2.5) == 2:\n    from cmath import *\n    return phase(1)", 0),
    ("from __future__ import annotations\ndef f(x: Unknown): ...\nreturn f.__annotations__['x']", "Unknown"),
    ("'a text'\nfrom __future__ import (\n  annotations\n)\nimport asyncio\nawait asyncio.sleep(0, 3)", 3),
    ("z = 1\ndel earlier\n'earlier' in globals()", False),
    ("global g\ng = 1\ndef f():\n    global g\n    g += 1\nf()\ng", 2),
    ("def f():\n    yield 1\n    return\nlist(f())", [1]),
    ("[lambda: (yield), *range(2)][1:]  # the last ;", [0, 1]),
    ("a = 1; b = (a +\n  1); (b, 'ä', {'k': '''\n x'''})  ;", [2, "ä", {"k": "\n x"}]),
    ("x = 3\r\nx \\\r\n + 1\r\n", 4),
    ("x = 'ä'; return(x)", "ä"),
    ("*range(3), 'b'", [0, 1, 2, "b"]),
    ("return 1\nraise ValueError", 1),
    ("return", None),
    ("", None),
    ("5\nx = 1", None),
    ("async def f():\n    yield 3\nasync for n in f():\n    return n", 3),
    ("if '\\d':\n    return '\\d'", "\\d"),
]


def test_all_that_a_notebook_may_hold_at_its_top_level_may_stand_there(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        for code, value in TOP_LEVEL:
            await provider.run("earlier = 1")
            assert await provider.run(code) == value, code
        await provider.run("if True:\n    kept: int = 1\n    for kept_too in [2]:\n        return")
        assert await provider.run("kept, kept_too") == [1, 2]
        left = await provider._session.execute("[name for name in dir() if 'kernelexec' in name]")
        assert left.text.strip() == "[]"

    run(tmp_path, steps)


@pytest.mark.parametrize(
    "code",
    [
        "yield 1",
        "x = yield",
        "await (yield)",
        "break",
        "continue",
        "if 1:\n    break\nelse:\n    return 1",
        "for x in y:\n    pass\nelse:\n    continue\nif 1:\n    return 1",
        "return 1\nbreak",
        "class A:\n    return 1",
        "nonlocal x",
        "from __future__ import braces",
        "if 1:\n    from __future__ import annotations",
        "if 1:\n    return 1\nfrom __future__ import annotations",
        "def f():\n    from m import *",
        "try:\n    pass\nexcept* E:\n    return 1",
        "!ls",
        "%time",
        "  x = 1",
        "x\0",
        "'\ud800'",
        "(" * 1000,
        "x = 1 \\",
    ],
)
def test_invalid_code_is_refused_before_anything_runs(code: str) -> None:
    with pytest.raises(InvalidCode, match="cannot run"):
        cell_of(code)


def test_a_return_where_python_has_none_is_reported_by_its_own_line() -> None:
    with pytest.raises(InvalidCode, match=r"'return' cannot appear in an except\* block \(code, line 2\)"):
        cell_of("x = 1\ntry:\n    pass\nexcept* E:\n    return 1")


def test_a_refusal_says_the_line_and_leaves_no_trace(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        with pytest.raises(InvalidCode, match=r"'yield' outside function \(code, line 2\)"):
            await provider.run("x = 1\nyield x")
        assert provider._session.executions() == ()

    run(tmp_path, steps)


RETURNS = [
    "for i in 1, 2, 3:\n    for j in 1, 2:\n        if i * j > 5:\n            return i, j\n    else:\n        x = i\nreturn 0",
    "for i in range(2):\n    if i > 5:\n        return i\nelse:\n    return 'else'",
    "for i in range(2):\n    if i == 1:\n        return i\nelse:\n    return 'else'",
    "n = 0\nwhile True:\n    n += 1\n    while n % 7:\n        if n == 5:\n            return n\n        n += 1",
    "try:\n    return 1\nfinally:\n    for i in range(3):\n        if i > 7:\n            return 2\n    done = 1",
    "for k in 'ab':\n    try:\n        return k\n    finally:\n        for i in 0, 1:\n            if i > 8: return 2",
    "for k in 'ab':\n    try:\n        return k\n    finally:\n        for i in 0, 1:\n            if i: return 2",
    "try:\n    return 1 / 0\nexcept ZeroDivisionError:\n    return 'caught'\nelse:\n    return 'else'",
    "try:\n    1 / 0\nexcept BaseException:\n    pass\nfinally:\n    return 'last'",
    "try:\n    return 'kept'\nexcept BaseException:\n    return 'never'",
    "x = [1]\ntry:\n    return x\nfinally:\n    x.append(2)",
    "from contextlib import suppress\nwith suppress(BaseException):\n    return 1\nreturn 2",
    "class T(list):\n    __enter__ = list.copy\n    def __exit__(self, *told): self += told\nx = T()\nwith x:\n    return x",
    "match 3:\n    case 2:\n        return 2\n    case n if n > 2:\n        return [n]",
    "if 0:\n    return 1\nelif 0:\n    return 2\nelse:\n    x = 3\nx += 1\nreturn {'x': x}",
    "if 0:\n    return\nx = 3",
    "if 1:\n    return\nx = 3",
    "text = f'''a\n  b{1 + 1:>3}'''\nif text:\n    return (text, '''\n x''')",
]


def test_a_return_does_what_it_does_in_a_function(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        for code in RETURNS:
            names: dict[str, Any] = {}
            tree = ast.parse("def body(): pass")
            tree.body[0].body = ast.parse(code).body  # type: ignore[attr-defined]
            exec(compile(tree, "body", "exec"), names)  # noqa: S102 - the oracle
            value = names["body"]()
            assert await provider.run(code) == (list(value) if isinstance(value, tuple) else value), code

    run(tmp_path, steps)


def test_code_stands_in_its_cell_as_it_was_written() -> None:
    code = "x = {'a':1}   # a comment\n\nif x :  pass\nreturn  x['a']"
    assert "\nx = {'a':1}   # a comment\n\nif x :  pass\n__kernelexec.returns((  x['a']))\n" in cell_of(code)


def test_functions_work_whatever_the_names_of_the_user_are(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        shadowing = """
import builtins
globals().update((name, 'shadowed') for name in dir(builtins) if name[:2] != '__')
json = asyncio = os = uuid = display = pathlib = name = token = place = None
"""
        assert await provider.run(shadowing) is None
        functions: dict[str, Callable[..., Any]] = {
            "times": lambda x, *, by: x * by,
            "list": list,
            "fails": lambda: 1 / 0,
        }
        code = "await times(x, by=3), await list()"
        assert await provider.run(code, inputs={"x": 7}, external_functions=functions) == [21, []]
        with pytest.raises(ExecutionFailed, match="RuntimeError: ZeroDivisionError"):
            await provider.run("await fails()", external_functions=functions)
        assert await provider.run("return {'len': len}") == {"len": "shadowed"}

    run(tmp_path, steps)


@pytest.mark.parametrize("name", ["class", "None", "a-b", "1a", "", "a b", "__debug__", "__kernelexec", "a\nb"])
def test_names_that_code_could_not_use_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="must be an identifier"):
        cell_of("1", name)
    with pytest.raises(InvalidRequest, match="must be an identifier"):
        cell_of("1", inputs={name: 1})


class Odd(BaseException):
    """An exception that no handler catches and that cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, Odd])
def test_errors_of_a_function_reach_the_code(tmp_path: Path, kind: type[BaseException]) -> None:
    async def steps(provider: SandboxProvider) -> None:
        def plain() -> None:
            raise kind

        async def later() -> None:
            await asyncio.sleep(0.01)
            raise kind

        async def cancelled() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(600)

        functions: dict[str, Callable[..., Any]] = {"plain": plain, "later": later, "cancelled": cancelled}
        for name in functions:
            with pytest.raises(ExecutionFailed, match=r"error, state kept[\s\S]*RuntimeError: \w+"):
                await asyncio.wait_for(provider.run(f"await {name}()", external_functions=functions), BOUND)

    run(tmp_path, steps)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_a_run_however_it_ends(tmp_path: Path, kind: str) -> None:
    ended: list[str] = []

    async def steps(provider: SandboxProvider) -> None:
        begun = asyncio.Event()

        async def slow() -> None:
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0)
                ended.append("slow")

        functions: dict[str, Callable[..., Any]] = {"slow": slow, "quick": lambda: "a" * 1_000_000}
        waiting = "import asyncio\nawait asyncio.gather(slow(), *(quick() for _ in range(20)))"
        running = asyncio.create_task(provider.run(waiting, external_functions=functions))
        await asyncio.wait_for(begun.wait(), BOUND)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert left_behind(tmp_path) == []
        assert await provider.run("asyncio.create_task(quick())\n1", external_functions=functions) == 1
        assert left_behind(tmp_path) == []
        with pytest.raises(ExecutionFailed):
            await provider.run("import os\nawait quick()\nos._exit(1)", external_functions=functions)
        assert left_behind(tmp_path) == []
        begun.clear()
        running = asyncio.create_task(provider.run("await slow()", external_functions=functions))
        await asyncio.wait_for(begun.wait(), BOUND)
        await provider._session.close()
        with pytest.raises(ExecutionFailed):
            await running

    run(tmp_path, steps, kind)


def test_functions_that_still_run_are_cancelled_and_waited_for(tmp_path: Path) -> None:
    ended: list[str] = []

    async def steps(provider: SandboxProvider) -> None:
        async def lasting() -> None:
            (tmp_path / "default" / "begun").touch()
            try:
                await asyncio.sleep(600)
            finally:
                ended.append("lasting")

        code = "import asyncio, os\nasyncio.create_task(lasting())\n"
        code += "while not os.path.exists('begun'): await asyncio.sleep(0.01)\n1"
        assert await provider.run(code, external_functions={"lasting": lasting}) == 1
        assert ended == ["lasting"]

    run(tmp_path, steps)


def test_a_call_after_its_run_fails_at_once(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        functions: dict[str, Callable[..., Any]] = {"f": lambda: 1}
        assert await provider.run("kept = f\nawait f()", external_functions=functions) == 1
        for settings in ({}, functions):
            with pytest.raises(ExecutionFailed, match="RuntimeError: f: its run is over"):
                await asyncio.wait_for(provider.run("await kept()", external_functions=settings), BOUND)

    run(tmp_path, steps)


def test_code_waits_for_no_answer_that_cannot_be_written(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        def breaking() -> None:
            (folder,) = left_behind(tmp_path)
            (folder / "lasts").unlink()
            folder.rmdir()
            folder.write_text("in its place")

        with pytest.raises(ExecutionFailed, match="could not be written"):
            await asyncio.wait_for(provider.run("await breaking()", external_functions={"breaking": breaking}), BOUND)
        shutil.rmtree(tmp_path / "default" / ".kernelexec")
        (tmp_path / "default" / ".kernelexec").write_text("in its place")
        with pytest.raises(InvalidWorkDir, match="must be writable"):
            await provider.run("1", external_functions={"breaking": breaking})
        (tmp_path / "default" / ".kernelexec").unlink()

    run(tmp_path, steps)


def test_large_answers_come_and_large_arguments_are_refused(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        functions: dict[str, Callable[..., Any]] = {"large": lambda: "a" * 20_000_000, "size": len}
        assert await provider.run("len(await large())", external_functions=functions) == 20_000_000
        with pytest.raises(ExecutionFailed, match="ValueError: size: its arguments are"):
            await provider.run(f"await size('a' * {ARGUMENTS_CHARS})", external_functions=functions)
        fits = ARGUMENTS_CHARS // 2 - 10
        assert await provider.run(f"""await size('"' * {fits})""", external_functions=functions) == fits

    run(tmp_path, steps)


ROWS = [{"a": 1, "b": "x", "t": "2026-01-02T00:00:00"}, {"a": 2, "b": "y", "t": None}]
VALUES = [
    ("(1, 'a', None, True, 2.5)", [1, "a", None, True, 2.5]),
    ("{1: {'b': ()}}", {"1": {"b": []}}),
    ("[{7}, frozenset()]", [[7], []]),
    ("frame", ROWS),
    ("{'rows': frame, 'n': np.int64(2)}", {"rows": ROWS, "n": 2}),
    ("frame[frame.a == 2][['a']]", [{"index": 1, "a": 2}]),
    ("frame.groupby('b').a.sum()", [{"b": "x", "a": 1}, {"b": "y", "a": 2}]),
    ("frame.a", [1, 2]),
    ("frame.columns", ["a", "b", "t"]),
    ("pd.DataFrame({2020: [pd.NA]})", [{"2020": None}]),
    ("pd.Timedelta('1h'), pd.Timestamp('2026-01-02')", ["0 days 01:00:00", "2026-01-02T00:00:00"]),
    ("np.arange(4).reshape(2, 2), np.float32(0.5), np.bool_(True)", [[[0, 1], [2, 3]], 0.5, True]),
    ("np.array(['2026-01-02'], dtype='M8[ns]')", ["2026-01-02T00:00:00.000000000"]),
    ("Point(1, datetime.date(2026, 1, 2))", {"x": 1, "y": "2026-01-02"}),
]
REFUSED = [
    ("object()", "A value of type object must be converted to JSON first"),
    ("{'deep': [b'x']}", "A value of type bytes must be converted to JSON first"),
    ("Point", "A value of type type must be converted to JSON first"),
    ("{(1, 2): 3}", "keys must be str"),
    ("pd.concat([frame, frame], axis=1)", "must have unique column names"),
    ("circle", "Circular reference"),
]
KINDS_OF_VALUES = """
import datetime, numpy as np, pandas as pd
from dataclasses import dataclass
@dataclass
class Point:
    x: object
    y: object
frame = pd.DataFrame({'a': [1, 2], 'b': ['x', 'y'], 't': [pd.Timestamp('2026-01-02'), None]})
circle = []
circle.append(circle)
"""


def test_a_value_is_whole_or_an_error(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        await provider.run(KINDS_OF_VALUES)
        heard: list[object] = []
        functions: dict[str, Callable[..., Any]] = {"hear": heard.append}
        for code, value in VALUES:
            assert await provider.run(code) == value, code
            await provider.run(f"await hear(({code}))", external_functions=functions)
            assert heard.pop() == value, code
        for code, reason in REFUSED:
            with pytest.raises(ExecutionFailed, match=f"TypeError: The code's value: .*{reason}"):
                await provider.run(code)
            with pytest.raises(ExecutionFailed, match=f"TypeError: The arguments of hear: .*{reason}"):
                await provider.run(f"await hear(({code}))", external_functions=functions)
        assert heard == []
        assert await provider.run("[float('nan'), float('inf'), '\\ud800']") == [None, None, "\\ud800"]
        with pytest.raises(ExecutionFailed, match="nested deeper than"):
            await provider.run("deep = []\nfor _ in range(300):\n    deep = [deep]\ndeep")

    run(tmp_path, steps)


def test_a_value_comes_when_other_displays_have_taken_all_room(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        code = "for n in range(50):\n    await f(n)\nreturn 'x' * 5000"
        assert await provider.run(code, external_functions={"f": abs}) == "x" * 5000

    run(tmp_path, steps, config={"output": {"display_bytes": 1000}})


def test_functions_run_in_the_context_of_their_caller(tmp_path: Path) -> None:
    request = contextvars.ContextVar("request", default="none")

    async def steps(provider: SandboxProvider) -> None:
        async def served(name: str) -> object:
            request.set(name)
            code = "import asyncio\nawait asyncio.sleep(0.05)\nawait f()"
            return await provider.run(code, external_functions={"f": request.get})

        assert list(await asyncio.gather(served("one"), served("two"))) == ["one", "two"]

    run(tmp_path, steps)


def test_functions_work_under_the_rules_of_a_tutorial(tmp_path: Path) -> None:
    async def steps(provider: SandboxProvider) -> None:
        assert await provider.run("await f(x)", inputs={"x": -1}, external_functions={"f": abs}) == 1
        with pytest.raises(SecurityError, match="open"):
            await provider.run("open('x')", external_functions={"f": abs})

    run(tmp_path, steps, config={"rules": {"code": "tutorial"}})
