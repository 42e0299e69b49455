"""The journal of a session: cells, commands, refusals and changes of its life as lines of JSON, written at once."""

from __future__ import annotations

from kernelexec.records.journal.history import RunningCell, read_history, running_cell
from kernelexec.records.journal.journal import Journal
from kernelexec.records.journal.records import (
    SUFFIX,
    JournaledRequest,
    JournalRow,
    journal_path,
    journals,
    path_of,
    read,
    rows,
    shorten_result,
    statistics,
)

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
