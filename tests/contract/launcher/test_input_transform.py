"""A cell is read as IPython reads it, though most are not cut into tokens, and what was asked before is not found out anew."""

from __future__ import annotations

import random
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShellABC

from kernelexec import Session
from kernelexec.launcher.ipython.input_transform import DisplayHook, Reader, Transformer

#: What IPython's syntax is made of, among what ends a line, hides a sign or has one by chance.
PIECES = [*"%!?,;/= \t\nx1'#()", "%%", "!!", "??", "\r\n", "\x0c", "\\\n", "ls", '"""', ": "]
PIECES += [">>> ", "... ", "In [1]: ", "   ...: ", "\n  \n", "\n\x0b\n"]
CELLS = ["1+1", "a % b", "x = %who", "files = !ls", "%time 1", "  ;f a", "/f a", "f?", "'%'", "# ?", "f(\n/g)"]
CELLS += ["%%bash\nls", "x\n,f a b\n", "if 1:\n    x\n  y", "", "\n", "(", "'"]


#: IPython's classes have no types.
OURS: Any = Transformer
THEIRS: Any = TransformerManager


@InteractiveShellABC.register
class Shell:
    """What a display hook asks for the cell that runs."""

    def __init__(self, cells: list[str]) -> None:
        self.history_manager = SimpleNamespace(input_hist_parsed=cells)


def read(manager: Any, cell: str) -> object:
    try:
        return manager.transform_cell(cell)
    except IndentationError:  # a cell that is not cut into tokens is left as it is by then, and does not compile either
        lines: Any = (cell if cell.endswith("\n") else f"{cell}\n").splitlines(keepends=True)
        for transform in [*manager.cleanup_transforms, *manager.line_transforms]:
            lines = transform(lines)
        return "".join(lines)
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is to be the same
        return type(exc)


def test_any_cell_is_read_as_ipython_reads_it() -> None:
    chosen = random.Random(1)  # noqa: S311 - for many cells, not for secrets
    made = ["".join(chosen.choices(PIECES, k=chosen.randint(1, 12))) for _ in range(20_000)]
    ours, theirs = OURS(), THEIRS()
    assert [(cell, read(ours, cell)) for cell in (*CELLS, *made)] == [(cell, read(theirs, cell)) for cell in (*CELLS, *made)]


def complete(manager: TransformerManager, cell: str) -> object:
    try:
        return manager.check_complete(cell)
    except Exception as exc:  # noqa: BLE001 - as above
        return type(exc)


def test_whether_a_cell_is_complete_is_told_as_ipython_tells_it() -> None:
    chosen = random.Random(2)  # noqa: S311 - as above
    pieces = [*PIECES, "if x", ":\n", "\n  ", "\n    "]
    made = ["".join(chosen.choices(pieces, k=chosen.randint(1, 12))) for _ in range(10_000)]
    ours, theirs = OURS(), THEIRS()
    with warnings.catch_warnings(action="ignore"):
        told = [(cell, complete(ours, cell)) for cell in (*CELLS, *made)]
        assert told == [(cell, complete(theirs, cell)) for cell in (*CELLS, *made)]


def test_a_cell_without_its_syntax_is_not_cut_into_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(_lines: list[str]) -> None:
        raise AssertionError

    monkeypatch.setattr("IPython.core.inputtransformer2.make_tokens_by_line", cut)
    cell = "for i in range(3):\n    print(i / 2, [i, 'a;b'])\n"
    assert OURS().transform_cell(cell) == cell
    with pytest.raises(AssertionError):
        OURS().transform_cell("a != b")


def test_lines_that_somebody_joined_are_read() -> None:
    manager = OURS()
    manager.cleanup_transforms.append(lambda lines: ["".join(lines)])
    assert "run_line_magic('time'" in manager.transform_cell("x\n%time 1")
    assert "print(" in manager.transform_cell("x=1\n/print 7")


@pytest.mark.parametrize("which", ["cleanup_transforms", "line_transforms"])
def test_what_somebody_adds_to_the_transforms_is_asked(which: str) -> None:
    manager = OURS()
    getattr(manager, which).append(lambda lines: [line.upper() for line in lines])
    assert manager.transform_cell("x + 1") == "X + 1\n"


def test_what_somebody_adds_to_the_transformers_is_asked() -> None:
    class Adding:
        @classmethod
        def find(cls, _tokens: Any) -> None:
            asked.append(cls)

    asked: list[type] = []
    manager = OURS()
    manager.token_transformers.append(Adding)
    manager.transform_cell("1+1")
    assert asked == [Adding]


@pytest.mark.parametrize(
    ("cells", "quiet"),
    [
        ([], False),
        (["1"], False),
        (["1;"], True),
        (["1; # why"], True),
        (["1 #;"], False),
        (["';'"], False),
        (["1;", "2"], False),
    ],
)
def test_a_semicolon_at_the_end_hides_the_value(cells: list[str], quiet: bool) -> None:  # noqa: FBT001 - a parameter
    hook: Any = DisplayHook.__new__(DisplayHook)
    hook.shell = Shell(cells)
    assert hook.quiet() is quiet


def test_whether_a_cell_awaits_is_found_out_once_for_both_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    def find(cell: str) -> bool:
        found.append(cell)
        return "await" in cell

    monkeypatch.setattr("IPython.core.interactiveshell._should_be_async", find)
    shell: Any = Reader.__new__(Reader)
    told = [
        shell.should_run_async(raw, transformed_cell=text)
        for raw, text in (("1", "1\n"), ("await f", "await f\n"))
        for _ in "12"
    ]
    assert told == [False, False, True, True]
    assert found == ["1\n", "await f\n"]
    shell.should_run_async("await f", transformed_cell="await f\n")
    shell.autoawait = False
    assert not shell.should_run_async("await f", transformed_cell="await f\n")
    failed = (ValueError, ValueError(), None)
    assert not shell.should_run_async("await f", transformed_cell="await f\n", preprocessing_exc_tuple=failed)


REGISTERING = "ip.register_magic_function(lambda line: print(line), magic_name='foo9')"
COUNTING = "ip.input_transformers_post.append(lambda lines: [line.replace('NN', str(len(told))) for line in lines])"
CODE_THAT_RUNS_CELLS = {
    "a name that hides a magic": ("ip.run_cell('pwd'); pwd = 3; ip.run_cell('pwd')", "3\n"),
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
