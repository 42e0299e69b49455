"""A session's journal: cells, commands, refusals and changes of its life as lines of JSON, written as they happen."""

from __future__ import annotations

from kernelexec.records.journal.history import read_history
from kernelexec.records.journal.journal import Journal
from kernelexec.records.journal.reader import (
    SUFFIX,
    JournaledRequest,
    JournalRow,
    journal_path,
    journals,
    path_of,
    read,
    rows,
    statistics,
)
from kernelexec.records.journal.records import shorten_result
from kernelexec.records.journal.running_cell import RunningCell, running_cell

__all__ = [
    "SUFFIX",
    "Journal",
    "JournalRow",
    "JournaledRequest",
    "RunningCell",
    "journal_path",
    "journals",
    "path_of",
    "read",
    "read_history",
    "rows",
    "running_cell",
    "shorten_result",
    "statistics",
]
