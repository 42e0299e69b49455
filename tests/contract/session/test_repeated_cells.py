"""Cells that run again: those since the checkpoint to which a session goes back, as far as that is safe."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidRequest, KernelStartFailed, Session
from kernelexec.kernel import Kernel
from kernelexec.session.cells.cell_repeats import CellRepeats
from tests.support.pace import until

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()

#: The tests say where the checkpoints are: none is made but by request.
CHECKPOINTS = "named"
DIES = "import os; os._exit(3)"


def value(session: Session, code: str) -> object:
    result = session.execute(code)
    assert result.ok, result.text
    return result.value


def run(session: Session, *codes: str) -> None:
    for code in codes:
        session.execute(code)


def test_cells_since_the_checkpoint_run_again_after_a_death(session: Session) -> None:
    run(session, "x = [1]")
    session.checkpoint()
    run(session, "x.append(2)", "def double(n): return 2 * n", "y = double(x[-1])", "1 / 0")
    commanded = session.execute_command("cd /; echo hello")
    assert commanded.ok
    result = session.execute(f"x.append(3); {DIES}")
    assert (result.state, result.cause, result.lost_names) == ("restored", "exited", ())
    assert "its checkpoint before cell [2]: the cells [2] to [6] have run again" in result.notes[0]
    assert value(session, "(x, y)") == ([1, 2], 4)
    assert session.execute_command("pwd").text == "/\n"
    assert value(session, "In[2:6]") == ["x.append(2)", "def double(n): return 2 * n", "y = double(x[-1])", "1 / 0"]


@pytest.mark.parametrize("has_safe_cell", [True, False])
def test_without_a_checkpoint_the_cells_run_again_in_a_new_kernel(*, has_safe_cell: bool, tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"quiet": True, "checkpoints": "each"}) as executor:
        session = executor.session("new")
        run(session, "x = 1" if has_safe_cell else "x = 1; open('log', 'a').close()")
        run(session, "def double(n): return 2 * n", "y = double(x)")
        until(lambda: len(session.checkpoints()) == 3)
        for checkpoint in session.checkpoints():
            checkpoint.drop()
        epoch = session.kernel_epoch
        result = session.execute(DIES)
        assert any("There was no checkpoint to go on from" in note for note in result.notes), result.notes
        assert session.kernel_epoch == epoch + has_safe_cell
        if has_safe_cell:
            assert (result.state, result.lost_names) == ("restored", ())
            assert "goes on in a new one: the cells [1] to [3] have run again" in result.notes[-1]
            assert value(session, "(x, y)") == (1, 2)
        else:
            assert (result.state, result.lost_names) == ("lost", ("double", "x", "y"))


def test_the_first_cell_that_is_not_safe_ends_the_repetition(session: Session) -> None:
    run(session, "def note(text):\n    with open('log', 'a') as file: file.write(text)", "x = 1")
    session.checkpoint()
    run(session, "x = 2", "note('once')", "x = 3; new = 1")
    result = session.execute(DIES)
    assert (result.state, result.lost_names) == ("restored", ("new",))
    assert "cell [3] has run again" in result.notes[0]
    assert "Cell [4] did not run again: it uses `note`, and it adds to a file" in result.notes[0]
    assert "Older now: x." in result.notes[0]
    assert value(session, "x") == 2
    assert (session.workspace / "log").read_text() == "once"


#: Cells before a checkpoint, after it, and the number of the first one that does not run again, with the reason.
OTHER_EFFECTS = {
    "append": ("", ["note('once')"], 2, "it uses `note`, and it adds to a file"),
    "append after an append": ("", ["x = 1", "note('once')"], 3, "it uses `note`, and it adds to a file"),
    "read and write": (
        "",
        ["frame = open('data').read(); open('data', 'w').write('new')"],
        2,
        "it may read a file and change it",
    ),
    "read before a write": ("", ["y = open('data').read()", "open('data', 'w').write('2')"], 2, "it may use files"),
    "write before an append": (
        "path = 'log'",
        ["with open(path, 'w') as file: file.write('head ')", "with open(path, 'a') as file: file.write('precious')"],
        2,
        "it may use files",
    ),
    "read by a function": ("", ["y = get()", "open('data', 'w').write('2')"], 2, "it may use files"),
    "read by a cell before the one that dies": (
        "",
        ["y = get()", f"open('data', 'w').write('2'); {DIES}"],
        2,
        "it may use files",
    ),
    "values of their own": ("", ["import uuid; y = uuid.uuid4()"], 2, "its values may be others each time (`uuid`)"),
    "functions of the workspace": ("", ["import helpers; y = helpers.log('y')"], 2, "it uses `helpers`, whose effects"),
    "a timeout": ("", ["while True: x = 1"], 2, "it was ended by its timeout"),
}
FUNCTIONS = """open('log', 'a').close()
def note(text):
    with open('log', 'a') as file: file.write(text)
def get():
    return open('data').read()
x = 0"""


@pytest.mark.parametrize("case", OTHER_EFFECTS)
def test_cells_with_another_effect_are_not_repeated(case: str, session: Session) -> None:
    before, cells, number, reason = OTHER_EFFECTS[case]
    (session.workspace / "data").write_text("1")
    (session.workspace / "helpers.py").write_text("def log(text): open('log', 'a').write(text)")
    run(session, f"{FUNCTIONS}\n{before}")
    session.checkpoint()
    for cell in cells:
        result = session.execute(cell, timeout=0.5 if "while" in cell else 60)
    content = [(session.workspace / name).read_text() for name in ("data", "log")]
    result = result if result.state == "restored" else session.execute(DIES)
    assert f"Cell [{number}] did not run again: {reason}" in result.notes[0]
    assert content == [(session.workspace / name).read_text() for name in ("data", "log")]
    assert session.execute("y").error is not None


@pytest.mark.parametrize("has_cell_before", [True, False])
def test_a_value_from_outside_ends_the_repetition(*, has_cell_before: bool, session: Session) -> None:
    session.put("x", 1)
    if has_cell_before:
        run(session, "0")
    session.checkpoint()
    session.put("x", 2)
    run(session, "y = x")
    result = session.execute(DIES)
    assert "did not run again: variables were set from outside of a cell before it" in result.notes[0]
    assert session.execute("y").error is not None


def test_undo_is_exact_between_two_checkpoints_or_refused(session: Session) -> None:
    run(session, "x = 0")
    session.checkpoint()
    run(session, *(f"x += {number}" for number in (1, 10, 100)))
    undone = session.undo()
    assert (undone.cells, value(session, "x")) == (1, 11)
    assert undone.notes[-1] == "The cells [2] to [3] have run again since the checkpoint."
    run(session, "open('log', 'a').write('x')", "x = 5")
    with pytest.raises(InvalidRequest, match=r"before cell \[2\], and cell \[5\] cannot run again: .* undo\(5\) goes back to"):
        session.undo()
    assert value(session, "x") == 5
    assert session.undo(6).cells == 6
    assert value(session, "x") == 0
    assert (session.workspace / "log").read_text() == "x"


ASSERTS = "x.append(3)\nassert not pathlib.Path('flag').is_dir()"


def test_a_cell_that_ends_otherwise_than_before_leaves_no_effect(session: Session) -> None:
    run(session, "import pathlib; x = []")
    session.checkpoint()
    run(session, "x.append(2)", ASSERTS, "x.append(4)")
    (session.workspace / "flag").mkdir()
    result = session.execute(DIES)
    assert "cell [2] has run again" in result.notes[0]
    assert "Cell [3] did not run again: it ended otherwise when it ran again (AssertionError)" in result.notes[0]
    assert session.execute("x").value == [2]
    assert session.execute("1").execution_count == 4


def test_undo_says_how_many_cells_are_undone_when_one_ends_otherwise(session: Session) -> None:
    run(session, "import pathlib; x = []")
    session.checkpoint()
    run(session, "x.append(2)", ASSERTS, "x.append(4)", "x.append(5)")
    (session.workspace / "flag").mkdir()
    undone = session.undo()
    assert (undone.cells, value(session, "x")) == (3, [2])
    assert "Cell [3] and those after it are undone: it ended otherwise" in undone.notes[-1]


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_checkpoint_that_is_gone_by_then_is_not_restored(
    session: Session, monkeypatch: pytest.MonkeyPatch, *, is_asked_for: bool
) -> None:
    async def end_otherwise(_: CellRepeats, kernel: Kernel, *_more: object) -> str:
        for checkpoint in await kernel.find_checkpoints():
            await checkpoint.drop()
            checkpoint.close()
        return "it ended otherwise"

    run(session, "x = 1")
    session.checkpoint()
    run(session, "x = 2", "x = 3")
    monkeypatch.setattr(CellRepeats, "_run", end_otherwise)
    if is_asked_for:
        with pytest.raises(KernelStartFailed, match="Checkpoint 1 is gone"):
            session.undo()
        result = session.execute("1")
    else:
        result = session.execute(DIES)
        assert "no kernel without its effects started: Checkpoint 1 is gone." in result.notes[-1]
    assert (result.state, result.lost_names) == ("lost", ("x",))
    assert session.execute("2").state == "kept"


def test_a_session_that_is_closed_while_cells_run_again_is_not_restored(session: Session) -> None:
    run(session, "import pathlib; x = 0")
    session.checkpoint()
    run(session, "while pathlib.Path('gate').is_dir(): pass\nx = 1")
    (session.workspace / "gate").mkdir()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(session.execute, DIES)
        until(lambda: session.kernel_epoch == 2)
        session.close()
    result = running.result()
    assert (result.state, result.lost_names) == ("lost", ("pathlib", "x"))


def test_a_cell_that_ends_the_kernel_later_runs_again_once_at_most(session: Session) -> None:
    run(session, "import faulthandler")
    session.checkpoint()
    run(session, "x = 1; faulthandler.dump_traceback_later(0.5, exit=True)")
    for _ in range(2):
        until(lambda: session.connection_file is None)
        result = session.execute("'x' in globals()")
        assert result.state == "restored", result.notes
    assert result.value is False
    assert "the kernel ended after it had run again" in result.notes[0]
    time.sleep(1)
    assert session.execute("1").state == "kept"


def test_repeated_cells_count_in_notebook_and_journal(session: Session, tmp_path: Path) -> None:
    run(session, "x = 0")
    session.checkpoint()
    run(session, "x += 1", "open('log', 'a').write('x')", "x += 10", DIES, "x += 100")
    session.save_notebook()
    assert session.notebook is not None
    cells = json.loads(session.notebook.read_text())["cells"]
    undone = [cell["source"] for cell in cells if "skip-execution" in cell["metadata"].get("tags", ())]
    assert ["".join(source) for source in undone] == ["open('log', 'a').write('x')", "x += 10", DIES]
    config = {"quiet": True, "checkpoints": "off"}
    with Executor("local", workspace=tmp_path, config=config) as executor:
        again = executor.session("again", notebook=session.journal)
        assert value(again, "x") == value(session, "x") == 101
