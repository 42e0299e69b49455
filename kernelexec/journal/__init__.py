"""A session's journal: every cell, command, refusal and change of its life as a line of JSON, written as it happens."""

from __future__ import annotations

from kernelexec.journal.journal import Journal
from kernelexec.journal.reading import DIRECTORY, SUFFIX, Row, journals, path_of, read, rows

__all__ = ["DIRECTORY", "SUFFIX", "Journal", "Row", "journals", "path_of", "read", "rows"]
