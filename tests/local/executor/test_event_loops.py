"""Event loops: asyncio's own and uvloop, debugged, in threads, several in one process; and none at all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import uvloop

from kernelexec import AsyncExecutor, Closed, InvalidRequest
from tests.support.night import named_cases
from tests.support.pace import BOUND, slow
from tests.support.paths import ROOT

Run = Callable[[Coroutine[Any, Any, Any]], Any]
RUNS: dict[str, Run] = {
    "asyncio": asyncio.run,
    "asyncio, debugged": partial(asyncio.run, debug=True),
    "uvloop": uvloop.run,
    "uvloop, debugged": partial(uvloop.run, debug=True),
}


async def use(directory: Path, name: str = "a") -> list[str]:
    """Use what waits on processes, sockets and files: cells, a timeout, a restart, a command."""
    async with AsyncExecutor("local", workspace=directory, config={"budgets": {"grace": slow(2)}}) as executor:
        session = await executor.session(name)
        texts = [(await session.execute("x = 41; print(x + 1)")).text]
        overrun = await session.execute("import time; time.sleep(60)", timeout=0.5)
        texts.append(f"{overrun.interrupted} {overrun.state}")
        texts.append((await session.execute_command("echo $((x + 5))", timeout=BOUND)).stdout)
        await session.restart()
        texts.append((await session.execute("'x' in globals()")).text)
        both = await asyncio.gather(session.execute("print('one')"), (await executor.session("b")).execute("print('two')"))
        return [*texts, *(result.text for result in both)]


EXPECTED = ["42\n", "timeout kept", "5\n", "False", "one\n", "two\n"]


@pytest.mark.parametrize("run", named_cases(RUNS, {"asyncio, debugged", "uvloop"}))
def test_everything_works_on_a_loop(run: Run, tmp_path: Path) -> None:
    assert run(use(tmp_path)) == EXPECTED


@pytest.mark.nightly
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_one_loop_after_the_other_works(run: Run, tmp_path: Path) -> None:
    assert [run(use(tmp_path / f"{number}")) for number in range(2)] == [EXPECTED] * 2


def test_two_loops_at_once_in_threads_work(tmp_path: Path) -> None:
    values: dict[str, list[str]] = {}

    def work(name: str, run: Run) -> None:
        values[name] = run(use(tmp_path / name, name))

    threads = [threading.Thread(target=work, args=item) for item in (("one", asyncio.run), ("two", uvloop.run))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert values == {"one": EXPECTED, "two": EXPECTED}


NESTED = """
import asyncio, sys
from pathlib import Path
import nest_asyncio2
from tests.local.executor.test_event_loops import use

nest_asyncio2.apply()

async def main():
    return asyncio.get_running_loop().run_until_complete(use(Path(sys.argv[1])))

print(asyncio.run(main()))
"""


def test_a_nested_run_of_a_loop_works(tmp_path: Path) -> None:
    """In a process of its own, since nest_asyncio2 changes asyncio for good."""
    command = [sys.executable, "-c", NESTED, str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert process.stdout == f"{EXPECTED}\n", process.stderr


def test_trio_is_a_clear_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExecutor("local", workspace=tmp_path):
            pass

    # In the main thread trio fails where another test's event loop has left its signal handling.
    with ThreadPoolExecutor(1) as threads, pytest.raises(InvalidRequest, match="needs an event loop of asyncio"):
        threads.submit(trio.run, main).result()


def test_a_session_before_the_executor_is_open_is_a_clear_error(tmp_path: Path) -> None:
    async def main() -> None:
        executor = AsyncExecutor("local", workspace=tmp_path)
        entering = asyncio.create_task(executor.__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(Closed, match="not open"):
            await executor.session("early")
        await entering
        assert (await (await executor.session("early")).execute("6 * 7")).text == "42"
        await executor.__aexit__(None, None, None)

    asyncio.run(main())
