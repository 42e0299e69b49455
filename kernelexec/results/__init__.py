"""The words of an outcome: what a cell put out, and the one result that says what became of it."""

from __future__ import annotations

from kernelexec.results.attempts import Attempt, Attempts
from kernelexec.results.background import BackgroundCommand, BackgroundOutput, BackgroundStatus
from kernelexec.results.environments import Installation, Package, PythonEnvironment, Served
from kernelexec.results.files import FileBytes, FileEntry, FileKind, FileList, FilesDeleted, FileText, FileWritten, NotDeleted
from kernelexec.results.inputs import InputRequest, OnInput
from kernelexec.results.notes import remarks
from kernelexec.results.outputs import (
    DisplayData,
    Error,
    ExecuteResult,
    Image,
    MimeBundle,
    Output,
    Stream,
    decode_base64,
    image_of,
    output_text,
    stream_text,
    strip_ansi,
)
from kernelexec.results.replay import Outcome, Replay, ReplayedCell
from kernelexec.results.result import (
    Cause,
    CellLine,
    Diagnosis,
    ExecutionFailed,
    ExecutionResult,
    Interrupted,
    OutputPage,
    Progress,
    Rung,
    SecurityError,
    State,
    Status,
    Timing,
)
from kernelexec.results.snapshots import LeftOut, Restored, SavedVariable, Snapshot
from kernelexec.results.statistics import CallStatistics, Statistics, Tally
from kernelexec.results.tests import TestCase, TestReport, TestVerdict
from kernelexec.results.usage import Holder, KernelStatus, LimitsSet, MemoryUse, Stats
from kernelexec.results.variables import CodeStatus, Completion, Variable, Variables

__all__ = [
    "Attempt",
    "Attempts",
    "BackgroundCommand",
    "BackgroundOutput",
    "BackgroundStatus",
    "CallStatistics",
    "Cause",
    "CellLine",
    "CodeStatus",
    "Completion",
    "Diagnosis",
    "DisplayData",
    "Error",
    "ExecuteResult",
    "ExecutionFailed",
    "ExecutionResult",
    "FileBytes",
    "FileEntry",
    "FileKind",
    "FileList",
    "FileText",
    "FileWritten",
    "FilesDeleted",
    "Holder",
    "Image",
    "InputRequest",
    "Installation",
    "Interrupted",
    "KernelStatus",
    "LeftOut",
    "LimitsSet",
    "MemoryUse",
    "MimeBundle",
    "NotDeleted",
    "OnInput",
    "Outcome",
    "Output",
    "OutputPage",
    "Package",
    "Progress",
    "PythonEnvironment",
    "Replay",
    "ReplayedCell",
    "Restored",
    "Rung",
    "SavedVariable",
    "SecurityError",
    "Served",
    "Snapshot",
    "State",
    "Statistics",
    "Stats",
    "Status",
    "Stream",
    "Tally",
    "TestCase",
    "TestReport",
    "TestVerdict",
    "Timing",
    "Variable",
    "Variables",
    "decode_base64",
    "image_of",
    "output_text",
    "remarks",
    "stream_text",
    "strip_ansi",
]
