"""Cells are read as IPython reads them, also where code runs cells or changes how they are read."""

from __future__ import annotations

import pytest

from kernelexec import Session

REGISTERING = "ip.register_magic_function(lambda line: print(line), magic_name='foo9')"
COUNTING = "ip.input_transformers_post.append(lambda lines: [line.replace('NN', str(len(told))) for line in lines])"
CODE_THAT_RUNS_CELLS = {
    "a name that hides a magic": ("ip.run_cell('pwd'); pwd = 3; ip.run_cell('pwd')", "\n3"),
    "a magic that is new": (f"ip.run_cell('foo9 x'); {REGISTERING}; ip.run_cell('foo9 x')", "x\n"),
    "a transformer that counts": (
        f"told = []; {COUNTING}\nfor _ in range(3): ip.run_cell('print(NN)'); told.append(1)",
        "0\n1\n2\n",
    ),
}


@pytest.mark.parametrize(("code", "text"), CODE_THAT_RUNS_CELLS.values(), ids=CODE_THAT_RUNS_CELLS)
def test_cells_that_code_runs_are_read_each_time(session: Session, code: str, text: str) -> None:
    assert session.execute(f"ip = get_ipython()\n{code}\nNone").text.endswith(text)


def test_a_transformer_counts_from_the_next_cell_on(session: Session) -> None:
    adding = "import asyncio; await asyncio.sleep(0); print('old')\n"
    adding += "get_ipython().input_transformers_post.append(lambda lines: [line.replace('old', 'new') for line in lines])"
    assert [session.execute(adding).text for _ in range(2)] == ["old\n", "new\n"]
