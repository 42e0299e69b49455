"""Variables saved and loaded in the kernel: what comes back, what cannot, and that nothing is read on this side."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kernelexec import AsyncExecutor, ExecutionFailed, Executor, InvalidRequest, InvalidTimeout, KernelError, Session, Snapshot
from tests.support.pace import RunningCell, slow

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

#: The tests lose the state, so no cell has a checkpoint.
CHECKPOINTS = "named"
PLAIN = "import numpy as np, pandas as pd\na = np.arange(1000)\nframe = pd.DataFrame({'n': [1, 2]})\ntext = 'x'\nshared = [a]"


def whys(snapshot: Snapshot) -> dict[str, str]:
    return {left.name: left.reason for left in snapshot.left_out}


def text(session: Session, code: str) -> str:
    result = session.execute(code)
    assert result.ok, result.text
    return result.text.strip()


def test_variables_come_back_in_a_new_kernel(session: Session) -> None:
    session.execute(PLAIN)
    snapshot = session.snapshot()
    assert snapshot.names == {"a", "frame", "text", "shared"}
    assert {left.name for left in snapshot.left_out if left.defined} == {"np", "pd"}
    assert {variable.name: variable.type for variable in snapshot.variables}["a"] == "numpy.ndarray"
    assert all(variable.size_bytes > 0 and variable.seconds >= 0 for variable in snapshot.variables)
    session.restart()
    assert session.restore(snapshot).names == ("a", "frame", "shared", "text")
    assert text(session, "int(a.sum()), frame['n'].tolist(), text") == "(499500, [1, 2], 'x')"
    assert set(session.names) >= {"a", "frame", "text", "shared"}


def test_shared_values_come_back_as_separate_copies(session: Session) -> None:
    session.execute("a = [1]\nb = [a, a]")
    snapshot = session.snapshot()
    session.restore(snapshot)
    assert text(session, "b[0] is a, b[0] is b[1], b[0] == a") == "(False, True, True)"


def test_files_are_private_and_no_cells_files(session: Session) -> None:
    session.execute("x = 1")
    snapshot = session.snapshot()
    directory = Path(snapshot.directory)
    assert directory.is_relative_to(session.workspace / ".kernelexec" / "snapshots")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600]
    assert session.execute("open('own.txt', 'w').write('x')").files == ("own.txt",)


def test_a_snapshot_is_no_cell(session: Session) -> None:
    assert session.execute("x = 1").execution_count == 1
    session.restore(session.snapshot())
    result = session.execute("x")
    assert result.execution_count == 2
    assert len(session.executions()) == 2
    assert session.notebook is not None
    assert "save_variables" not in session.notebook.read_text(encoding="utf-8")
    assert text(session, "[s for s in In if 'variables' in s and 'In' not in s]") == "[]"


def test_unpicklable_variables_are_listed_with_the_reason(session: Session) -> None:
    session.execute(
        "import functools, threading\nf = lambda: 1\nheld = [lambda: 1]\nlock = threading.Lock()\nclass C: pass\nx = 1"
    )
    snapshot = session.snapshot()
    assert snapshot.names == {"x"}
    actual = whys(snapshot)
    assert "function" in actual["f"]
    assert "cannot be pickled" in actual["held"]
    assert "cannot be pickled" in actual["lock"]
    assert {left.name for left in snapshot.left_out if left.defined} == {"C", "f", "functools", "threading"}
    assert len(list(Path(snapshot.directory).iterdir())) == 1


def test_only_the_named_variables_are_saved(session: Session) -> None:
    session.execute("x = 1\ny = 2")
    snapshot = session.snapshot(["y", "nothing"])
    assert snapshot.names == {"y"}
    assert "no variable" in whys(snapshot)["nothing"]


def test_an_object_whose_loading_raises_costs_no_other(session: Session) -> None:
    session.execute("import sys\nclass Bad:\n    def __reduce__(self):\n        return (sys.exit, (3,))\nbad, x = Bad(), 1")
    session.execute("class Worse:\n    def __setstate__(self, state):\n        raise RuntimeError('no way')\n    n = 0")
    session.execute("worse = Worse(); worse.n = 1")
    snapshot = session.snapshot()
    assert snapshot.names == {"bad", "worse", "x"}
    session.execute("del x")
    restored = session.restore(snapshot)
    assert "x" in restored.names
    assert {left.name: left.reason for left in restored.missing}["worse"] == "RuntimeError: no way"
    assert text(session, "x") == "1"


def test_loading_never_happens_on_this_side(session: Session) -> None:
    mark = session.workspace / "mark"
    code = f"import os\nclass Telling:\n    def __reduce__(self):\n        return (os.open, ({str(mark)!r}, os.O_CREAT))"
    session.execute(f"{code}\ntelling = Telling()")
    snapshot = session.snapshot(["telling"])
    assert not mark.exists()
    session.execute("here = os.getpid()")
    assert session.restore(snapshot).names == ("telling",)
    assert mark.exists()
    assert int(text(session, "here")) != os.getpid()


@pytest.mark.parametrize("harm", ["missing", "changed", "link"])
def test_a_file_that_is_not_what_was_saved_is_reported_and_not_loaded(session: Session, harm: str, tmp_path: Path) -> None:
    session.execute("x, y = 1, 2")
    snapshot = session.snapshot()
    path = next(Path(snapshot.directory) / item.file for item in snapshot.variables if item.name == "x")
    content = path.read_bytes()
    path.unlink()
    if harm == "changed":
        path.write_bytes(pickle.dumps(666))
    elif harm == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    session.execute("x = 'own'; y = 'own'")
    restored = session.restore(snapshot)
    assert (restored.names, [left.name for left in restored.missing]) == (("y",), ["x"])
    assert text(session, "x, y") == "('own', 2)"


def test_a_snapshot_survives_as_json(session: Session) -> None:
    session.execute("x = 1")
    snapshot = session.snapshot()
    assert Snapshot.from_dict(snapshot.to_dict()) == snapshot


def test_a_snapshot_waits_for_its_turn(session: Session) -> None:
    cell = RunningCell(session, "import time\nprint('begun', flush=True)\ntime.sleep(0.5)\nx = 1")
    assert session.snapshot().names == {"x"}
    assert cell.result().ok


def test_one_that_takes_too_long_leaves_nothing_and_keeps_the_state(session: Session) -> None:
    session.execute("import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(600)\nslow, x = Slow(), 1")
    with pytest.raises(ExecutionFailed) as caught:
        session.snapshot(timeout=slow(1))
    assert (caught.value.result.interrupted, caught.value.result.state) == ("timeout", "kept")
    assert list((session.workspace / ".kernelexec" / "snapshots").iterdir()) == []
    assert text(session, "x") == "1"


def test_one_whose_caller_goes_away_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    begun = tmp_path / "default" / "begun"
    begun.parent.mkdir()
    os.mkfifo(begun)
    body = f"open({str(begun)!r}, 'w').close()\n        time.sleep(600)"
    code = f"import time\nclass Slow:\n    def __reduce__(self):\n        {body}"

    async def cancelled() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path) as executor:
            session = await executor.session()
            await session.execute(f"{code}\nslow, x = Slow(), 1")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.snapshot)
                await anyio.to_thread.run_sync(begun.read_bytes)
                tasks.cancel_scope.cancel()
            assert (await session.execute("x")).text == "1"
            assert list((session.workspace / ".kernelexec" / "snapshots").iterdir()) == []

    anyio.run(cancelled)


def test_one_that_ends_the_kernel_is_reported_and_leaves_nothing(session: Session) -> None:
    session.execute("import os\nclass Deadly:\n    def __reduce__(self):\n        os._exit(3)\na, deadly = 1, Deadly()")
    with pytest.raises(ExecutionFailed) as caught:
        session.snapshot()
    assert (caught.value.result.exit_code, caught.value.result.state) == (3, "lost")
    assert list((session.workspace / ".kernelexec" / "snapshots").iterdir()) == []
    assert session.execute("1 + 1").notes


def test_a_loss_before_a_snapshot_is_still_reported_to_the_next_cell(session: Session) -> None:
    session.execute("x = 1")
    session.restart()
    assert session.snapshot().names == set()
    result = session.execute("1 + 1")
    assert result.state == "lost"
    assert "x" in result.lost_names


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Session]:
    with Executor(isolation="local", workspace=tmp_path, config={"capacity": {"value_bytes": 100_000}}) as executor:
        yield executor.session()


def test_a_variable_over_the_quota_is_left_out_and_the_others_are_not(small: Session) -> None:
    small.execute("huge = bytes(10_000_000)\nlist_of = ['x' * 50_000]\nx = 1")
    snapshot = small.snapshot()
    assert snapshot.names == {"list_of", "x"}
    assert "bytes left" in whys(snapshot)["huge"]
    assert snapshot.total_bytes < 100_000
    again = small.snapshot()
    assert again.names == {"x"}
    assert "bytes left" in whys(again)["list_of"]


def test_snapshots_taken_at_once_share_the_quota(tmp_path: Path) -> None:
    taken: list[Snapshot] = []

    async def main() -> None:
        config = {"capacity": {"value_bytes": 100_000}}
        async with AsyncExecutor(isolation="local", workspace=tmp_path, config=config) as executor:
            session = await executor.session()

            async def take() -> None:
                taken.append(await session.snapshot())

            await session.execute("x = bytes(80_000)")
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(take)

    anyio.run(main)
    assert sum(snapshot.total_bytes for snapshot in taken) < 100_000


BAD_NAMES: tuple[Any, ...] = ("x", b"x", 5, [5], ["x"] * 2000)


@pytest.mark.parametrize("names", BAD_NAMES, ids=["text", "bytes", "number", "numbers", "too many"])
@pytest.mark.shared_session
def test_invalid_names_of_a_snapshot_are_refused(session: Session, names: Any) -> None:
    with pytest.raises(InvalidRequest, match="names="):
        session.snapshot(names)


def test_bad_requests_are_refused_before_anything_runs(session: Session) -> None:
    session.execute("number = 1")
    snapshot = session.snapshot()
    with pytest.raises(InvalidRequest, match="saved="):
        session.restore(3.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="did you mean 'number'"):
        session.restore(snapshot, names=["numbr"])
    with pytest.raises(InvalidTimeout):
        session.snapshot(timeout=0)


def test_a_file_name_that_leads_elsewhere_is_not_loaded(session: Session) -> None:
    session.execute("x = 1")
    snapshot = session.snapshot()
    variable = replace(snapshot.variables[0], file="../../own.pickle")
    restored = session.restore(replace(snapshot, variables=(variable,)))
    assert (restored.names, [left.name for left in restored.missing]) == ((), ["x"])


LIES = [
    "None",
    "{'saved': 5, 'left_out': 'x'}",
    "{'saved': [1, {'name': 1}, {'name': 'x', 'type': '', 'size_bytes': -1, 'file': '0.pickle', 'sha256': '0' * 64}]}",
    "{'saved': [{'name': 'x', 'type': 't', 'size_bytes': 1, 'seconds': 0, 'file': '/etc/passwd', 'sha256': 'a' * 64}]}",
]


@pytest.mark.parametrize("lie", LIES)
def test_answers_of_a_hostile_kernel_are_checked(executor: Executor, lie: str) -> None:
    session = executor.session("lies")
    session.execute(f"shell = get_ipython()\ndef lie(*_):\n    shell.last_answer = {lie}\nshell.save_variables = lie")
    if lie == "None":
        with pytest.raises(KernelError, match="did not report the result"):
            session.snapshot()
    else:
        assert session.snapshot().variables == ()
    session.close()
