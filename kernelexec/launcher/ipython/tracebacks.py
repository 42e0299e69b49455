"""IPython's tracebacks, with the lines that raised."""

from __future__ import annotations

from typing import Any

from IPython.core.ultratb import AutoFormattedTB


class Tracebacks(AutoFormattedTB):
    """Marks in each frame the line that raised, as Python does.

    Of frames in cells IPython 8 and 9 (9.18 too) mark the line where they are by now: an ``except`` that did not match, the end
    of a ``finally``, or, of an exception that was handled, whatever was raised in its place.
    """

    def get_records(self, etb: Any, *bounds: Any) -> Any:
        """The frames of a traceback, outermost first. Those that IPython takes as they are, it calls raw."""
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
            entry = entry.tb_next  # a frame may be there twice, with two lines, where it raised what it had caught
        return records
