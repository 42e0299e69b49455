"""The values that calls return: outputs, results, reports and statistics."""

from __future__ import annotations

from kernelexec.results.attempts import Attempt, Attempts
from kernelexec.results.background_commands import BackgroundCommand, BackgroundOutput, BackgroundStatus
from kernelexec.results.call_statistics import CallStatistics, Statistics, StatisticsAccumulator
from kernelexec.results.environments import Installation, Package, PythonEnvironment, Served
from kernelexec.results.file_operations import (
    FileBytes,
    FileEntry,
    FileKind,
    FileList,
    FilesDeleted,
    FileText,
    FileWritten,
    NotDeleted,
)
from kernelexec.results.inputs import InputRequest, OnInput
from kernelexec.results.notes import model_notes
from kernelexec.results.outputs import (
    DisplayData,
    Error,
    ExecuteResult,
    Image,
    MimeBundle,
    Output,
    Stream,
    best_image,
    decode_base64,
    output_text,
    stream_text,
    strip_ansi,
)
from kernelexec.results.replay import Outcome, Replay, ReplayedCell
from kernelexec.results.resource_usage import KernelStatus, LargeVariable, LimitsSet, MemoryUse, Stats
from kernelexec.results.result import (
    Cause,
    CellLine,
    Diagnosis,
    ExecutionFailed,
    ExecutionResult,
    Interrupted,
    InterruptStep,
    OutputPage,
    Progress,
    SecurityError,
    State,
    Status,
    Timing,
)
from kernelexec.results.snapshots import Restored, SavedVariable, SkippedVariable, Snapshot
from kernelexec.results.tests import TestCase, TestReport, TestVerdict
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
    "Image",
    "InputRequest",
    "Installation",
    "InterruptStep",
    "Interrupted",
    "KernelStatus",
    "LargeVariable",
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
    "SavedVariable",
    "SecurityError",
    "Served",
    "SkippedVariable",
    "Snapshot",
    "State",
    "Statistics",
    "StatisticsAccumulator",
    "Stats",
    "Status",
    "Stream",
    "TestCase",
    "TestReport",
    "TestVerdict",
    "Timing",
    "Variable",
    "Variables",
    "best_image",
    "decode_base64",
    "model_notes",
    "output_text",
    "stream_text",
    "strip_ansi",
]
