"""A notebook opened as a session: the cells that come back, those that do not, and the report on them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from kernelexec import AsyncExecutor, Closed, Executor, InvalidRequest, Replay, Session
from kernelexec.records.notebook.notebook_io import CellFile
from tests.support.night import at_night
from tests.support.pace import slow


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Executor]:
    with Executor(isolation="local", workspace=tmp_path / "workspaces") as executor:
        yield executor


def written(path: Path, *sources: str, **metadata: dict[str, Any]) -> Path:
    """A notebook; metadata is that of the cell of that number, as ``c2``."""
    actual = [new_code_cell(source, metadata=metadata.get(f"c{number}", {})) for number, source in enumerate(sources, 1)]
    nbformat.write(new_notebook(cells=actual), path)
    return path


def report(session: Session) -> Replay:
    assert session.replay is not None
    return session.replay


def outcomes(session: Session) -> list[str]:
    return [cell.outcome for cell in report(session).cells]


def test_a_session_without_a_notebook_has_no_replay(own: Executor) -> None:
    assert own.session().replay is None


def test_the_cells_of_a_notebook_come_back_in_order(own: Executor, tmp_path: Path) -> None:
    path = written(tmp_path / "a.ipynb", "xs = [1]", "xs.append(2)", "def f():\n    return xs", "xs.append(3)")
    session = own.session("again", notebook=path)
    assert session.execute("f()").text == "[1, 2, 3]"
    actual = report(session)
    assert actual.ok
    assert outcomes(session) == ["repeated"] * 4
    assert (actual.names, actual.missing) == (("f", "xs"), ())
    assert [cell.number for cell in actual.cells] == [1, 2, 3, 4]
    assert [cell.execution_id for cell in actual.cells] == list(session.executions()[:4])
    assert session.notebook is not None
    session.save_notebook()
    assert CellFile.read(session.notebook).sources[:2] == ("xs = [1]", "xs.append(2)")


def test_a_script_is_replayed_by_its_cells(own: Executor, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("# %%\nx = 1\n# %% [markdown]\n# prose\n# %%\nx += 1\n", encoding="utf-8")
    session = own.session("again", notebook=str(path))
    assert session.execute("x").text == "2"


def test_a_session_resumes_from_its_own_notebook_which_stays_as_it_is(tmp_path: Path) -> None:
    workspace = tmp_path / "workspaces"
    with Executor(isolation="local", workspace=workspace) as executor:
        first = executor.session("work")
        first.execute("x = 40")
        first.execute("1/0")
        first.execute("x += 2")
        first.execute_command("mkdir -p sub && cd sub && export MODE=fast")
        first.execute_command("read line && export LINE=$line", stdin="hello\n", work_dir=".")
        assert first.notebook is not None
        path = first.notebook
    before = path.read_bytes()
    with Executor(isolation="local", workspace=workspace) as executor:
        session = executor.session("work", notebook=path)
        assert session.execute("x").text == "42"
        assert (report(session).ok, outcomes(session)) == (True, ["repeated"] * 5)
        assert session.execute_command("pwd; echo $MODE $LINE").stdout == f"{session.workspace}/sub\nfast hello\n"
        assert report(session).cells[1].reason == "failed as before: ZeroDivisionError: division by zero"
        assert session.notebook == path.with_name("work-2.ipynb")
    assert path.read_bytes() == before


def test_unsafe_cells_are_not_repeated_and_cells_that_need_them_say_so(own: Executor, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    path = written(
        tmp_path / "a.ipynb", f"import os\nr = os.remove({str(mark)!r})", "print(r)", "y = 1", "%%bash\nmake", "z = r"
    )
    session = own.session("again", notebook=path)
    assert mark.exists()
    assert outcomes(session) == ["unsafe", "failed", "repeated", "unsafe", "failed"]
    actual = report(session)
    assert "deletes files" in (actual.cells[0].reason or "")
    assert actual.cells[1].reason == "it needs `r`, which cell 1 makes"
    assert not actual.ok
    assert (actual.names, actual.missing) == (("y",), ("os", "r", "z"))
    text = str(actual)
    assert "5 cells: 1 repeated, 2 failed, 2 not safe to repeat" in text
    assert "Missing: os, r, z." in text
    plain = json.loads(json.dumps(actual.to_dict()))
    assert (plain["ok"], plain["counts"]["unsafe"], plain["cells"][0]["outcome"]) == (False, 2, "unsafe")


def test_unsafe_cells_are_repeated_on_request(own: Executor, tmp_path: Path) -> None:
    mark = own.config.absolute_workspace / "again" / "mark"
    mark.parent.mkdir(parents=True)
    mark.touch()
    path = written(tmp_path / "a.ipynb", f"import os\nr = os.remove({str(mark)!r})", "print(r)")
    session = own.session("again", notebook=path, repeat_unsafe=True)
    assert not mark.exists()
    assert report(session).ok


def test_a_cell_that_may_raise_and_raises_is_as_it_should_be(own: Executor, tmp_path: Path) -> None:
    path = written(tmp_path / "a.ipynb", "1/0", "1/0", c1={"tags": ["raises-exception"]})
    session = own.session("again", notebook=path)
    assert outcomes(session) == ["repeated", "failed"]
    assert "as its tag allows" in (report(session).cells[0].reason or "")


def test_another_failure_than_before_is_a_failure(own: Executor, tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    error = new_output("error", ename="KeyError", evalue="'x'", traceback=[])
    nbformat.write(new_notebook(cells=[new_code_cell("1/0", outputs=[error])]), path)
    assert outcomes(own.session("again", notebook=path)) == ["failed"]


@pytest.mark.parametrize(
    ("metadata", "outcome"),
    [
        ({"status": "aborted", "state": "unknown"}, "skipped"),
        ({"status": "error", "state": "lost"}, "unfinished"),
        ({"status": "ok", "state": "kept", "language": "typescript"}, "unsafe"),
        ({"status": 5, "state": [], "language": 7}, "repeated"),
    ],
)
def test_metadata_of_a_notebook_cell_decides_its_replay(
    own: Executor, tmp_path: Path, metadata: dict[str, Any], outcome: str
) -> None:
    path = written(tmp_path / "a.ipynb", "x = 1", c1={"kernelexec": metadata})
    assert outcomes(own.session("again", notebook=path)) == [outcome]


ENDS = ["ctypes.string_at(0)", *at_night("getattr(os, '_ex' + 'it')(3)")]


@pytest.mark.parametrize("end", ENDS)
def test_a_replay_goes_on_from_the_checkpoint_before_a_cell_that_ends_it(own: Executor, tmp_path: Path, end: str) -> None:
    path = written(tmp_path / "a.ipynb", "import os, ctypes\nx = 1", end, "y = x")
    session = own.session("again", notebook=path)
    assert outcomes(session) == ["repeated", "failed", "repeated"]
    actual = report(session)
    assert (actual.state_lost, actual.ok, actual.names) == (False, False, ("ctypes", "os", "x", "y"))
    assert session["y"] == 1


@pytest.mark.parametrize("end", ENDS)
def test_a_cell_that_ends_the_kernel_ends_the_replay_without_a_checkpoint(tmp_path: Path, end: str) -> None:
    path = written(tmp_path / "a.ipynb", "import os, ctypes\nx = 1", end, "y = x")
    with Executor("local", config={"workspace": tmp_path / "w", "checkpoints": "named"}) as executor:
        assert_replay_has_ended(executor.session("again", notebook=path))


def assert_replay_has_ended(session: Session) -> None:
    actual = report(session)
    assert outcomes(session) == ["repeated", "failed", "not_reached"]
    assert "ended the kernel" in (actual.cells[1].reason or "")
    assert actual.state_lost
    assert not actual.ok
    assert (actual.names, actual.missing) == ((), ("ctypes", "os", "x", "y"))
    assert "state was lost" in str(actual)
    assert session.execute("1 + 1").text == "2"


def test_a_cell_over_its_timeout_fails_and_the_replay_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ipynb", "x = 1", "import time\ntime.sleep(600)", "y = x")
    config = {"budgets": {"timeout": slow(2)}, "workspace": tmp_path / "w"}
    with Executor(isolation="local", config=config) as executor:
        session = executor.session("again", notebook=path)
        assert outcomes(session) == ["repeated", "failed", "repeated"]
        assert "timeout" in (report(session).cells[1].reason or "")


def test_an_empty_notebook_gives_an_empty_report(own: Executor, tmp_path: Path) -> None:
    session = own.session("again", notebook=written(tmp_path / "a.ipynb"))
    assert report(session).ok
    assert "nothing to run" in str(report(session))


def test_a_report_of_many_cells_stays_short(own: Executor, tmp_path: Path) -> None:
    session = own.session("again", notebook=written(tmp_path / "a.ipynb", *["1/0"] * 60))
    assert len(str(report(session)).splitlines()) < 30
    assert "40 cells more" in str(report(session))


def test_cancelling_the_opening_closes_the_session(tmp_path: Path) -> None:
    begun = tmp_path / "w" / "again" / "begun"
    begun.parent.mkdir(parents=True)
    os.mkfifo(begun)
    path = written(tmp_path / "a.ipynb", "x = 1", f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(60)")

    async def cancelled() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path / "w") as executor:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: executor.session("again", notebook=path))
                await anyio.to_thread.run_sync(begun.read_bytes)
                tasks.cancel_scope.cancel()
            assert executor.sessions() == ()
            session = await executor.session("again")
            assert (await session.execute("'x' in globals()")).text == "False"

    anyio.run(cancelled)


def test_closing_a_session_while_it_is_replayed_is_reported_to_its_opener(tmp_path: Path) -> None:
    begun = tmp_path / "w" / "again" / "begun"
    begun.parent.mkdir(parents=True)
    os.mkfifo(begun)
    path = written(tmp_path / "a.ipynb", f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(60)", "x = 1")

    async def closed() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path / "w") as executor:

            async def close() -> None:
                await anyio.to_thread.run_sync(begun.read_bytes)
                await executor.close_session("again")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(close)
                with pytest.raises(Closed):
                    await executor.session("again", notebook=path)

    anyio.run(closed)


def test_a_notebook_of_a_kernel_that_is_not_installed_is_refused_and_the_session_may_be_opened_again(
    own: Executor, tmp_path: Path
) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x <- 5")])
    notebook.metadata["kernelspec"] = {"name": "ir", "display_name": "R", "language": "R"}
    (tmp_path / "r.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="kernelspec 'ir' is not installed"):
        own.session("again", notebook=tmp_path / "r.ipynb")
    assert own.session("again").execute("6 * 7").text == "42"


def test_a_notebook_that_was_repaired_says_so_in_the_report(own: Executor, tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]}), encoding="utf-8")
    session = own.session("again", notebook=path)
    assert "The notebook was repaired in memory: a notebook without metadata, cells without metadata" in str(report(session))
    assert session.execute("x").text == "1"
