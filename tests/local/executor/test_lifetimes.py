"""Executors and sessions without a block, and workspaces that end with them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor, Executor
from kernelexec.errors import Closed, InvalidRequest
from tests.support.night import at_night
from tests.support.pace import until


@pytest.fixture(autouse=True)
def own_temporary_directory(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have temporary workspaces where no other test makes some."""
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def workspaces() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("kernelexec-workspace-*"))


def test_an_executor_is_opened_and_closed_by_calls(tmp_path: Path) -> None:
    executor = Executor("local", workspace=tmp_path)
    assert repr(executor) == "<Executor local · not open>"
    assert executor.open() is executor
    with pytest.raises(InvalidRequest, match="already open"):
        executor.open()
    assert executor.session("a").execute("1 + 1").value == 2
    assert repr(executor) == f"<Executor local · 1 session: a · {tmp_path}>"
    executor.close()
    executor.close()
    with pytest.raises(Closed):
        executor.session("a")
    assert executor.open().session("a").execute("2").value == 2
    executor.close()


def test_an_asynchronous_one_too(tmp_path: Path) -> None:
    async def steps() -> object:
        executor = await AsyncExecutor("local", workspace=tmp_path).open()
        try:
            async with await executor.session("a") as session:
                value = (await session.execute("1 + 1")).value
            return value, executor.sessions(), session.scope.is_stopping, repr(session), repr(executor)
        finally:
            await executor.close()

    assert asyncio.run(steps()) == (
        2,
        (),
        True,
        f"<AsyncSession a local closed · {tmp_path / 'a'}>",
        f"<AsyncExecutor local · no session · {tmp_path}>",
    )


def test_a_session_ends_with_its_block(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        with executor.session("a") as session:
            session.execute("x = 1")
            assert repr(session) == f"<Session a local idle · 1 variable: x · {tmp_path / 'a'}>"
        assert executor.sessions() == ()
        with pytest.raises(Closed):
            session.execute("x")


def test_a_temporary_workspace_exists_as_long_as_the_executor_is_open() -> None:
    before = workspaces()
    executor = Executor("local", workspace="temporary")
    assert workspaces() == before
    for _ in range(2):
        with executor:
            (workspace,) = workspaces() - before
            assert executor.session("a").workspace.parent == workspace
            executor.session("a").execute("open('file', 'w').write('x')").raise_for_error()
        assert workspaces() == before
    assert AsyncExecutor("local", workspace=Path("temporary")).config.workspace == Path("temporary")


@pytest.mark.parametrize("end", ["", *at_night("raise SystemExit(3)"), "1/0"])
def test_the_end_of_the_program_closes_an_open_executor(end: str) -> None:
    before = workspaces()
    code = (
        "from kernelexec import Executor\n"
        "executor = Executor('local', workspace='temporary', config={'quiet': True, 'preload': ()}).open()\n"
        f"print(executor.session('a').execute('import os; os.getpid()').value, flush=True)\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == {"": 0, "1/0": 1}.get(end, 3)
    until(lambda: not Path("/proc", done.stdout.strip()).exists())
    if (3, 12, 0) <= sys.version_info < (3, 12, 2):  # no thread starts at the end of these, so nothing can be removed
        for left in workspaces() - before:
            shutil.rmtree(left)
    else:
        assert "kernelexec.tasks_failed" not in done.stderr
        assert workspaces() == before
