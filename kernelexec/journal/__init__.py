"""A session's journal: every cell, command, refusal and change of its life as a line of JSON, written as it happens."""

from __future__ import annotations

from kernelexec.journal.figures import statistics
from kernelexec.journal.flight import Flight, in_flight
from kernelexec.journal.journal import Journal
from kernelexec.journal.past import past
from kernelexec.journal.reading import SUFFIX, Row, journal_path, journals, path_of, read, rows

__all__ = [
    "SUFFIX",
    "Flight",
    "Journal",
    "Row",
    "in_flight",
    "journal_path",
    "journals",
    "past",
    "path_of",
    "read",
    "rows",
    "statistics",
]
