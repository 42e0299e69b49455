"""Cells that were undone: the notebook marks them, the journal has the way back, and a replay leaves them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec import Executor, Session
from kernelexec.records import journal
from tests.conftest import KINDS
from tests.support.engine import needs_engine
from tests.support.pace import BOUND
from tests.support.takeovers import wait_until


def undone_cells(session: Session) -> list[str]:
    """Return the sources of the notebook's cells that are marked as undone, each by its tag and by its metadata."""
    session.save_notebook()
    assert session.notebook is not None
    nbformat.validate(notebook := nbformat.read(session.notebook, 4))
    tagged = [cell.source for cell in notebook.cells if "skip-execution" in cell.metadata.get("tags", [])]
    assert tagged == [cell.source for cell in notebook.cells if cell.metadata.kernelexec.get("undone")]
    return tagged


def replayed(kind: str, notebook: Path, workspace: Path) -> dict[str, Any]:
    with Executor(kind, workspace=workspace, config={**KINDS[kind], "quiet": True}) as executor:
        session = executor.session("again", notebook=notebook)
        return {name: session[name] for name in sorted(session.execute("[n for n in ('x', 'y', 'z') if n in globals()]").value)}


@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=[needs_engine, pytest.mark.nightly])])
def test_only_the_cells_that_count_are_replayed_from_the_notebook_and_from_the_journal(kind: str, tmp_path: Path) -> None:
    with Executor(kind, workspace=tmp_path / "first", config={**KINDS[kind], "quiet": True}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        session.checkpoint("early")
        session.execute("x = 2")
        session.execute_command("export MODE=late")
        session.execute("y = 2")
        session.checkpoint("late")
        session.restore("early")
        assert undone_cells(session) == ["x = 2", "%%bash\nexport MODE=late", "y = 2"]
        session.execute("x += 10; z = 3")
        assert undone_cells(session) == ["x = 2", "%%bash\nexport MODE=late", "y = 2"]
        assert session.notebook is not None
        assert replayed(kind, session.notebook, tmp_path / "second") == {"x": 11, "z": 3}
        session.restore("late")  # what was undone counts again, and what came meanwhile does not
        assert undone_cells(session) == ["x += 10; z = 3"]
        record = session.journal
    assert record is not None
    history = journal.read_history(record)
    assert [cell.source for cell in history.cells] == ["x = 1", "x = 2", "export MODE=late", "y = 2"]
    assert history.notes == ("1 cell had been undone before the session ended, and are left out.",)
    assert history.replaced == ()
    assert replayed(kind, record, tmp_path / "third") == {"x": 2, "y": 2}


def test_a_cell_that_ended_the_kernel_does_not_count_after_the_return(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"checkpoints": "each", "quiet": True}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        wait_until(lambda: len(session.checkpoints()) > 0)
        assert session.execute("x = 2; import os; os._exit(3)").state == "restored"
        session.execute("y = x")
        assert undone_cells(session) == ["x = 2; import os; os._exit(3)"]
        record = session.journal
    assert record is not None
    history = journal.read_history(record)
    assert ([cell.source for cell in history.cells], history.replaced) == (["x = 1", "y = x"], ())


def test_deleting_a_variable_is_no_cell(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"checkpoints": "each", "quiet": True}) as executor:
        session = executor.session("a")
        session.execute("x = y = 1")
        del session["y"]
        wait_until(lambda: len(session.checkpoints()) == 2)  # it has changed the state, as cells do
        session.checkpoint("deleted")
        session.execute("x = 2")
        session.restore("deleted")
        assert undone_cells(session) == ["x = 2"]


def test_cells_of_other_clients_leave_the_records_as_they_are(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True, "checkpoints": "named"}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        visitor: Any = BlockingKernelClient(connection_file=str(session.connection_file))
        visitor.load_connection_file()
        visitor.start_channels()
        try:
            visitor.wait_for_ready(timeout=BOUND)
            visitor.execute("w = 1", reply=True, timeout=BOUND)
        finally:
            visitor.stop_channels()
        session.checkpoint("visited")
        session.execute("x = 2")
        session.restore("visited")
        assert undone_cells(session) == ["x = 2"]
        assert session["w"] == 1


def test_reading_a_variable_and_going_back_are_no_cells(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        assert session["x"] == 1
        session["y"] = 1
        session.checkpoint("read")
        session.execute("x = 2")
        session.restore("read")
        assert undone_cells(session) == ["x = 2"]
        session.checkpoint("back")
        session.execute("x = 3")
        session.restore("back")
        assert undone_cells(session) == ["x = 2", "x = 3"]


def test_a_snapshot_with_variables_that_were_undone_is_not_loaded(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        session.checkpoint("first")
        session.execute("x = 2")
        session.snapshot()
        record = session.journal
        assert record is not None
        assert journal.read_history(record).snapshot is not None
        session.restore("first")
        history = journal.read_history(record)
    assert (history.snapshot, history.covered) == (None, 0)


def test_a_checkpoint_that_lies_about_its_cell_changes_no_record(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True}) as executor:
        session = executor.session("a")
        session.execute("x = 1")
        session.execute("c = get_ipython().kernel.checkpoints; c._last_cell = 'f' * 32; c.after_cell = lambda *_: None")
        session.checkpoint("lie")
        session.execute("x = 2")
        session.restore("lie")
        assert session["x"] == 1
        assert undone_cells(session) == []


def test_the_log_and_the_journal_name_the_checkpoint(tmp_path: Path) -> None:
    config = {"quiet": True, "log_dir": str(tmp_path / "logs")}
    with Executor("local", workspace=tmp_path / "spaces", config=config) as executor:
        session = executor.session("a")
        session.checkpoint()
        session.restore(1)
        record = session.journal
    assert record is not None
    lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert [(line["checkpoint"], line["after"]) for line in lines if line["event"] == "restored"] == [(1, "")]
    logs = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "logs").rglob("*") if path.is_file())
    assert "goes on from checkpoint 1" in logs
