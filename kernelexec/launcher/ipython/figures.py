"""Matplotlib's figures at the end of their cells, whatever context the first one was made in."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


class Figures:
    """The state of matplotlib's inline backend, which turns the interactive mode on with the first figure.

    A context such as ``style.context`` or ``rc_context`` around that figure restores all settings at its end, the mode too. No
    later figure would be shown then.
    """

    def __init__(self, shell: Any) -> None:
        self._shown = shell.events.callbacks["post_execute"]
        self._was_imported = "matplotlib" in sys.modules
        self._is_begun = self._is_settled = False

    def begin_cell(self) -> None:
        """Read the directory's ``matplotlibrc`` before the first cell if matplotlib was imported without it."""
        if self._is_begun:
            return
        self._is_begun = True
        if self._was_imported and Path("matplotlibrc").is_file():
            matplotlib: Any = sys.modules["matplotlib"]
            with suppress(Exception):  # the file may hold anything
                matplotlib.rcParams.update(matplotlib.rc_params())
                matplotlib.rcParamsOrig.update(matplotlib.rcParams)

    def end_cell(self) -> None:
        """Turn the interactive mode on again after the cell with the first figure, unless the cell has called ``ioff``."""
        backend: Any = sys.modules.get("matplotlib_inline.backend_inline")
        if self._is_settled or backend is None or backend.flush_figures not in self._shown:
            return
        self._is_settled = True
        matplotlib: Any = sys.modules["matplotlib"]
        pyplot: Any = sys.modules["matplotlib.pyplot"]
        if not matplotlib.is_interactive() and pyplot._draw_all_if_interactive in self._shown:  # noqa: SLF001 - ioff removes it
            matplotlib.interactive(True)  # noqa: FBT003 - the library's own signature
