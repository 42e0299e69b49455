"""What becomes of an executor whose owner does not leave it: its loop ends, its process forks, its process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from kernelexec import AsyncExecutor, Executor
from tests.local.executor.test_lifecycle import SLEEPS, entered, executor, run
from tests.support.night import named_cases
from tests.support.pace import BOUND, until_equal
from tests.support.remains import marked_processes, runtime_directories
from tests.support.takeovers import wait_until

__all__ = ["executor"]


def test_a_loop_that_ends_before_the_block_is_left_ends_all(executor: AsyncExecutor, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await executor.__aenter__()
        session = await executor.session()
        begun = asyncio.Event()
        task = asyncio.create_task(session.execute(SLEEPS, on_output=lambda _: begun.set()))
        await begun.wait()
        assert not task.done()

    with caplog.at_level("INFO", "kernelexec"):
        run(main)
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []
    assert "kernelexec.tasks_cancelled" in [record.message for record in caplog.records]
    run(lambda: entered(executor))


def test_calls_to_objects_of_a_closed_loop_are_refused(tmp_path: Path) -> None:
    script = f"""
import asyncio
from kernelexec import AsyncExecutor, Closed
executor = AsyncExecutor("local", workspace={str(tmp_path)!r}, config={{"preload": ()}})
loop = asyncio.new_event_loop()
loop.run_until_complete(executor.__aenter__())
session = loop.run_until_complete(executor.session())
loop.close()
async def main():
    calls = executor.session, executor.__aenter__, session.close, session.restart, session.interrupt
    for call in (*calls, lambda: session.execute("1"), lambda: session.wait_for("x")):
        try:
            await asyncio.wait_for(call(), 60)
        except Closed as exc:
            print("closed" in str(exc))
asyncio.run(main())
"""
    assert printed(script).split() == ["True"] * 7


def test_a_forked_child_ends_nothing_of_its_parents(tmp_path: Path, short_path: Path) -> None:
    script = f"""
import asyncio, os, sys
from kernelexec import AsyncExecutor, Closed
async def main():
    async with AsyncExecutor("local", workspace={str(tmp_path)!r}, config={{"preload": ()}}) as executor:
        session = await executor.session()
        kernel = int((await session.execute("import os; os.getpid()")).text)
        pid = os.fork()
        if pid == 0:
            raise SystemExit(7)
        _, status = os.waitpid(pid, 0)
        os.kill(kernel, 0)
        directories = os.listdir(os.environ["KERNELEXEC_RUNTIME_DIR"])
        print(os.waitstatus_to_exitcode(status), session.workspace.exists(), len(directories))
        sys.stdout.flush()
        os._exit(0)  # the child's end has taken the loop's descriptors with it: they share them
asyncio.run(main())
"""
    assert printed(script, KERNELEXEC_RUNTIME_DIR=str(short_path)).split() == ["7", "True", "1"]


def printed(script: str, **environ: str) -> str:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False, env=os.environ | environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


OWNER = """
import asyncio, os, sys, time
from kernelexec import AsyncExecutor
async def main(workspace):
    async with AsyncExecutor("local", workspace=workspace, config={"preload": ()}) as executor:
        sessions = [await executor.session(name) for name in ("a", "b")]
        await sessions[0].execute("print('x' * 3_000_000)")
        if "fork" in sys.argv and os.fork() == 0:
            time.sleep(600)
        print("begun", flush=True)
        await sessions[1].execute("import subprocess; subprocess.run(['sleep', '600'])")
asyncio.run(main(sys.argv[1]))
"""


ENDS = {f"{signum.name}, {how}": (signum, how) for signum in (signal.SIGKILL, signal.SIGTERM) for how in ("alone", "fork")}


@pytest.mark.parametrize(("signum", "how"), named_cases(ENDS, {"SIGKILL, fork", "SIGTERM, alone"}))
def test_leftovers_of_a_killed_owner_are_removed_at_the_next_start(
    tmp_path: Path, executor: AsyncExecutor, signum: signal.Signals, how: str
) -> None:
    before = marked_processes()
    command = [sys.executable, "-c", OWNER, str(tmp_path / "killed"), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "begun\n"
            [left] = runtime_directories()
            owner.send_signal(signum)
            owner.wait()
            with start_blocking_portal() as portal, portal.wrap_async_context_manager(executor):
                session = portal.call(executor.session)
                assert portal.call(session.execute, "1 + 1").text == "2"
                wait_until(lambda: not left.exists())
            wait_until(lambda: marked_processes().keys() <= before.keys())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)
    until_equal(runtime_directories, set())


KILLED = """
import os, signal, sys
from kernelexec import Executor
with Executor("local", workspace=sys.argv[1], config={'preload': ()}) as executor:
    executor.session("idle")
    executor.session("ended").execute("x = 1")
    executor.session("ended").close()
    session = executor.session("ran")
    session.execute("x = 1")
    session.execute(sys.argv[2])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("last", named_cases({"short": "2", "long": "print('y' * 200_000)"}, {"long"}))
def test_state_that_ended_with_its_owner_is_called_lost_once(tmp_path: Path, last: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), last], check=False, timeout=BOUND)
    assert killed.returncode == -signal.SIGKILL
    with Executor("local", workspace=tmp_path) as executor:
        states = {name: executor.session(name).execute("1").state for name in ("idle", "ended", "new")}
        assert states == {"idle": "kept", "ended": "new", "new": "kept"}
        session = executor.session("ran")
        first, second = session.execute("'x' in globals()"), session.execute("1")
        assert (first.text, first.state, first.cause) == ("False", "lost", "killed")
        assert "the one before ended (killed)" in first.notes[0]
        assert (second.state, second.notes) == ("kept", ())
    with Executor("local", workspace=tmp_path) as executor:
        assert executor.session("ran").execute("1").state == "new"
