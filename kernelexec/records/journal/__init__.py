"""A session's journal: cells, commands, refusals and changes of its life as lines of JSON, written as they happen."""

from __future__ import annotations

from kernelexec.records.journal.history import past
from kernelexec.records.journal.journal import Journal
from kernelexec.records.journal.reader import SUFFIX, Row, journal_path, journals, path_of, read, rows
from kernelexec.records.journal.running_cell import Flight, in_flight
from kernelexec.records.journal.statistics import statistics

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
