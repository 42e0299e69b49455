"""The files of a result are those that its cell changed, in a workspace of any size and wherever the kernel runs."""

from __future__ import annotations

import asyncio
import time

import pytest

from kernelexec import ExecutionResult, Session
from kernelexec.cells import CodeCell
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.cells.queue import MEMORY_BYTES_MAX, FinishedExecutions
from kernelexec.workspace.cell_files import ENTRIES_MAX

#: What runs in containers in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_files_of_a_background_command_are_those_of_the_next_cell",)
#: More than are compared one by one.
COUNT = ENTRIES_MAX + 1000
TREE = f"""import os
os.mkdir('d')
for n in range({COUNT}):
    open(f'd/{{n}}', 'w').close()"""
SHOW = "from IPython.display import SVG, display\ndisplay(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'))"


@pytest.mark.timeout(180)
def test_files_are_true_in_a_large_workspace(session: Session) -> None:
    created = session.execute(TREE, timeout=120)
    assert (len(created.files), created.notes[1:]) == (COUNT, ())
    cells = {
        "open('d/7', 'w').write('x')": ("d/7",),
        "os.remove('d/8')": (),
        "open('a', 'w').close(); open('d/zz', 'w').close()": ("a", "d/zz"),
        "os.chmod('d/9', 0o600)": ("d/9",),
        "os.rename('d/10', 'd/x')": ("d/x",),
        "os.makedirs('e/f/g/h'); open('e/f/g/h/i', 'w').close()": ("e/f/g/h/i",),
        "os.rename('e/f', 'moved')": ("moved/g/h/i",),
        "open('moved/g/h/j', 'w').close()": ("moved/g/h/j",),
        "kept_open = open('log', 'w'); kept_open.write('1'); kept_open.flush()": ("log",),
        "kept_open.write('2'); kept_open.flush()": ("log",),
        "1": (),
    }
    for code, files in cells.items():
        result = session.execute(code)
        assert (result.files, result.status) == (files, "ok"), code
    assert session.execute_command("touch d/11; mkdir n; echo x > n/m").files == ("d/11", "n/m")
    assert session.execute(SHOW).files == (f"outputs/cell-{session.execute('1').execution_count - 1:04d}-1.svg",)  # type: ignore[operator]


def test_files_of_a_background_command_are_those_of_the_next_cell(session: Session) -> None:
    session.execute("1")
    command = session.start_background("mkdir -p late/deep && echo x > late/deep/file")
    while session.background(command.command_id).status == "running":
        time.sleep(0.05)
    assert session.execute("1").files == ("late/deep/file",)


def test_names_of_files_count_as_memory_of_remembered_executions() -> None:
    async def finish() -> list[str]:
        history = FinishedExecutions()
        for name in ("a", "b", "c"):
            run = CellRun(cell=CodeCell("1"), masked_cell=CodeCell("1"), timeout=1.0, isolation="local", execution_id=name)
            run.finish(ExecutionResult(name, "s", "ok", files=(name * (MEMORY_BYTES_MAX // 2 - 1000),)))
            history.add(run)
        return list(history.runs)

    assert asyncio.run(finish()) == ["b", "c"]
