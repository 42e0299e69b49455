"""Output that comes after the end of its cell: below that cell in notebooks, and as text in the next result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from kernelexec import Executor, Session
from tests.conftest import Command
from tests.support.command_line import LOCAL, cells_of, script

#: A cell whose task says something once a later cell has made its file. Only a timer wakes it, so that it stays this cell's.
LATE = (
    "import asyncio, os\nprint('now')\nasync def say(gate, text):\n    while not os.path.exists(gate):\n"
    "        await asyncio.sleep(0.01)\n    print(text)\ntasks = [asyncio.create_task(say({!r}, {!r}))]"
)


def waits(gate: str, task: int = 0) -> str:
    """A cell that lets a task of an earlier one go on, and runs until it has ended."""
    return f"open({gate!r}, 'w').close()\nwhile not tasks[{task}].done():\n    await asyncio.sleep(0.01)"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Executor("local", workspace=tmp_path) as executor:
        yield executor.session()


def text_of(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def notebook_cells(session: Session) -> Any:
    session.save_notebook()
    assert session.notebook is not None
    text = session.notebook.read_text()
    nbformat.validate(json.loads(text))
    return nbformat.reads(text, as_version=4).cells


def test_the_next_result_has_it_as_text_once(session: Session) -> None:
    first = session.execute(LATE.format("gate", "late"))
    second, third = session.execute(waits("gate")), session.execute("1")
    assert second.stdout == ""
    assert second.notes == (f"Output of an earlier cell ({first.execution_id}) came late.\nlate",)
    assert third.notes == ()


def test_later_parts_come_with_later_results(session: Session) -> None:
    session.execute(f"{LATE.format('gate', 'one')}\ntasks.append(asyncio.create_task(say('second', 'two')))")
    notes = [session.execute(waits(gate, task)).notes for task, gate in enumerate(("gate", "second"))]
    assert [note.rpartition("\n")[2] for (note,) in notes] == ["one", "two"]


def test_a_note_is_bounded_and_names_the_call_that_gives_all(session: Session) -> None:
    first = session.execute(LATE.format("gate", "x" * 10_000))
    (note,) = session.execute(waits("gate")).notes
    assert len(note) < 2500
    assert f"wait_for('{first.execution_id}') gives all of it." in note


@pytest.mark.parametrize("shown", ["", "\ndisplay(1, display_id='d');"], ids=["text", "a display that may change"])
def test_a_sessions_notebook_has_it_below_its_cell(session: Session, shown: str) -> None:
    session.execute(LATE.format("gate", "late") + shown)
    session.execute("print('own')\n" + waits("gate"))
    first, second = notebook_cells(session)
    assert text_of(first) == "now\nlate\n"
    assert text_of(second) == "own\n"
    if shown:
        session.execute("from IPython.display import update_display; update_display(2, display_id='d')")
        assert [output.data["text/plain"] for output in notebook_cells(session)[0].outputs if "data" in output] == ["2"]


def test_a_cell_without_output_gets_it_too(session: Session) -> None:
    session.execute(LATE.format("gate", "late").replace("print('now')\n", ""))
    session.execute(waits("gate"))
    assert text_of(notebook_cells(session)[0]) == "late\n"


def test_an_executed_notebook_has_it_below_its_cell_also_after_the_last_one(tmp_path: Path, in_process: Command) -> None:
    second = f"{waits('gate')}\n{LATE.format('other', 'last')}"
    file = script(tmp_path, LATE.format("gate", "late"), second, waits("other"))
    done = in_process(tmp_path, "run", file, *LOCAL)
    assert done.returncode == 0, done.stderr
    assert [text_of(cell) for cell in cells_of(tmp_path / "given.executed.ipynb")] == ["now\nlate\n", "now\nlast\n", ""]
