"""How a cell is read: IPython's syntax becomes Python's, and whether it awaits is found out, once for each cell."""

from __future__ import annotations

import re
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.inputtransformer2 import EscapedCommand, HelpEnd, MagicAssign, SystemAssign, TransformerManager
from traitlets import Type

#: What looks for IPython's syntax among the tokens of a cell; and a line that may hold any of what they look for.
_BY_TOKENS = [MagicAssign, SystemAssign, EscapedCommand, HelpEnd]
_SPECIAL = re.compile(r"\s*[,;/]|.*[%!?]", re.DOTALL)


class Transformer(TransformerManager):
    """IPython's own, but a cell without its syntax, as most are, is not cut into tokens.

    The outcome is the same. Where a line's indentation fits none before it, it is the compiler that refuses the cell.
    """

    def __init__(self) -> None:
        super().__init__()

    def do_token_transforms(self, lines: list[str]) -> list[str]:
        """Lines of a cell, without IPython's syntax."""
        if self.token_transformers == _BY_TOKENS and not any(map(_SPECIAL.match, lines)):
            return lines
        found: list[str] = super().do_token_transforms(lines)
        return found


class DisplayHook(ZMQShellDisplayHook):
    """ipykernel's own, with the same outcome."""

    def quiet(self) -> bool:
        """Whether the cell ends with a semicolon, for which it is cut into tokens."""
        cells = self.shell.history_manager.input_hist_parsed
        return bool(cells) and ";" in cells[-1] and bool(super().quiet())


class Reader(ZMQInteractiveShell):
    """A shell that is asked the same of each cell twice, by ipykernel and by IPython, and answers the second time at once."""

    displayhook_class = Type(DisplayHook)
    _transformed: tuple[str, str] | None = None
    _awaits: tuple[tuple[str, str | None, bool], bool] | None = None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(input_transformer_manager=Transformer(), **kwargs)

    def transform_cell(self, raw_cell: str) -> str:
        """IPython's syntax as Python's."""
        known, self._transformed = self._transformed, None
        if known is not None and known[0] == raw_cell:
            return known[1]
        text: str = super().transform_cell(raw_cell)
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
