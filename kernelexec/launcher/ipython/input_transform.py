"""How a cell is read: IPython's syntax becomes Python's, and whether it awaits is found out, once for each cell."""

from __future__ import annotations

import asyncio
import re
from functools import wraps
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.inputtransformer2 import EscapedCommand, HelpEnd, MagicAssign, SystemAssign, TransformerManager
from traitlets import Type

#: What looks for IPython's syntax among the tokens of a cell; and a line that may hold any of what they look for.
_BY_TOKENS = [MagicAssign, SystemAssign, EscapedCommand, HelpEnd]
_SPECIAL = re.compile(r"^\s*[,;/]|[%!?]", re.MULTILINE)
#: What a cell has one of, at least, that is no Python before its tokens are looked at: indentation, prompts, a cell magic.
_UNCLEAN = re.compile(r"\A\s|\A%%|>>>|\.\.\.|In \[|^[^\S\n]+$", re.MULTILINE)


class Transformer(TransformerManager):
    """IPython's own, but a cell without its syntax, as most are, is not cut into tokens.

    The outcome is the same. Where a line's indentation fits none before it, it is the compiler that refuses the cell.
    """

    def __init__(self) -> None:
        super().__init__()
        self._usual = [*self.cleanup_transforms, *self.line_transforms]

    def transform_cell(self, cell: str) -> str:
        """A cell as Python."""
        if _UNCLEAN.search(cell) or [*self.cleanup_transforms, *self.line_transforms] != self._usual:
            return str(super().transform_cell(cell))
        text = cell if cell.endswith("\n") else f"{cell}\n"
        return "".join(self.do_token_transforms(text.splitlines(keepends=True)))

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """Lines of a cell, without IPython's syntax."""
        if self.token_transformers == _BY_TOKENS and not any(map(_SPECIAL.search, lines)):
            return lines
        found: list[str] = super().do_token_transforms(lines)
        return found

    def check_complete(self, cell: str) -> tuple[str, int | None]:
        """Whether a cell can be run, and how its next line is to be indented."""
        try:
            found: tuple[str, int | None] = super().check_complete(cell)
        except SyntaxError:  # of cutting into tokens, which comes later here
            return "invalid", None
        return found


class DisplayHook(ZMQShellDisplayHook):
    """ipykernel's own, with the same outcome."""

    def quiet(self) -> bool:
        """Whether the cell ends with a semicolon, for which it is cut into tokens."""
        cells = self.shell.history_manager.input_hist_parsed
        return bool(cells) and ";" in cells[-1] and bool(super().quiet())


class Reader(ZMQInteractiveShell):
    """A shell that is asked the same of each cell twice, by ipykernel and by IPython, and answers the second time at once.

    Between the two no code of the user's runs. What code asks that runs by itself, in a cell, is found out each time.
    """

    displayhook_class = Type(DisplayHook)
    _asked_twice = False
    in_task = False
    """Whether the cell has a task of its own, out of which KeyboardInterrupt would end the loop."""
    _transformed: tuple[str, str] | None = None
    _awaits: tuple[tuple[str, str | None, bool], bool] | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(input_transformer_manager=Transformer(), **kwargs)

    def expect_cell(self) -> None:
        """Called before ipykernel asks."""
        self._asked_twice, self._transformed, self._awaits = True, None, None
        self.in_task = False
        self.display_trap._nested_level = self.builtin_trap._nested_level = 0  # noqa: SLF001 - an interrupt leaves them as they are

    @wraps(ZMQInteractiveShell.run_cell_async)  # ipykernel looks at its parameters
    def run_cell_async(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Run a cell. Whoever runs one has asked by then."""
        self._asked_twice, self._transformed = False, None
        return self.run_within(args, kwargs)

    async def run_within(self, args: Any, kwargs: Any) -> Any:
        """Run a cell. An interrupt of what is done before its code, and after, ends no more than the cell."""
        try:
            return await super().run_cell_async(*args, **kwargs)
        except KeyboardInterrupt:
            if self.in_task:
                raise asyncio.CancelledError from None
            raise

    def transform_cell(self, raw_cell: str) -> str:
        """IPython's syntax as Python's."""
        known, self._transformed = self._transformed, None
        if known is not None and known[0] == raw_cell:
            return known[1]
        text: str = super().transform_cell(raw_cell)
        if self._asked_twice:
            self._transformed = (raw_cell, text)
        return text

    def should_run_async(
        self, raw_cell: str, *, transformed_cell: str | None = None, preprocessing_exc_tuple: Any = None
    ) -> bool:
        """Whether a cell awaits at its top level; it is compiled to know."""
        asked = (raw_cell, transformed_cell, preprocessing_exc_tuple is None and self.autoawait)
        known, self._awaits = self._awaits, None
        if known is not None and known[0] == asked:
            return known[1]
        given = {"transformed_cell": transformed_cell, "preprocessing_exc_tuple": preprocessing_exc_tuple}
        answer = bool(super().should_run_async(raw_cell, **given))
        self._awaits = (asked, answer)
        return answer
