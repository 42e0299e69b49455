"""The line that raised, in IPython's tracebacks.

- Checked for: IPython 8.37 and 9.18.
- Gain: right line numbers.
- Obsolete when: ``test_ipython_marks_another_line``.
"""

from __future__ import annotations

from typing import Any

from IPython.core.ultratb import AutoFormattedTB
from stack_data.core import RepeatedFrames
from stack_data.utils import collapse_repeated


class Tracebacks(AutoFormattedTB):
    """IPython's tracebacks, which mark in each frame of a cell the line that raised, as Python's do.

    IPython 8 and 9 mark the line that such a frame has reached by now: an ``except`` that did not match, the end of a
    ``finally``, or the line that raised another exception in the place of a handled one.
    """

    def get_records(self, etb: Any, *bounds: Any) -> Any:
        """Return the frames of a traceback, outermost first; frames of cells are raw to IPython."""
        records = super().get_records(etb, *bounds)
        entry = etb
        for record in records:
            if getattr(record, "description", None) != "Raw frame":
                continue
            while entry is not None and entry.tb_frame is not record.frame:
                entry = entry.tb_next
            if entry is None:
                break
            record.lineno = entry.tb_lineno or record.lineno
            entry = entry.tb_next  # a frame that raised a caught exception again occurs twice, with two lines
        return list(collapse_repeated(records, collapser=_collapse, key=_find_line))


def _find_line(record: Any) -> Any:
    """Return the code and line of a frame; a value of its own for frames that are collapsed already."""
    return (record.code, record.lineno) if getattr(record, "code", None) is not None else object()


def _collapse(records: list[Any], lines: list[Any]) -> Any:
    """Return one record for frames of an endless recursion, which stack_data does not see among raw frames."""
    repeated = RepeatedFrames([record.frame for record in records], lines)
    return type(records[0])._from_stack_data_FrameInfo(repeated)  # noqa: SLF001 - IPython has no other
