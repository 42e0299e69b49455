"""The words of an outcome: what a cell put out, and the one result that says what became of it."""

from __future__ import annotations

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
    Diagnosis,
    ExecutionFailed,
    ExecutionResult,
    Interrupted,
    OutputPage,
    Progress,
    Rung,
    State,
    Status,
    Timing,
)
from kernelexec.results.snapshots import LeftOut, Restored, SavedVariable, Snapshot
from kernelexec.results.stats import Holder, KernelStatus, LimitsSet, MemoryUse, Stats
from kernelexec.results.variables import CodeStatus, Completion, Variable, Variables

__all__ = [
    "Cause",
    "CodeStatus",
    "Completion",
    "Diagnosis",
    "DisplayData",
    "Error",
    "ExecuteResult",
    "ExecutionFailed",
    "ExecutionResult",
    "Holder",
    "Image",
    "Interrupted",
    "KernelStatus",
    "LeftOut",
    "LimitsSet",
    "MemoryUse",
    "MimeBundle",
    "Outcome",
    "Output",
    "OutputPage",
    "Progress",
    "Replay",
    "ReplayedCell",
    "Restored",
    "Rung",
    "SavedVariable",
    "Snapshot",
    "State",
    "Stats",
    "Status",
    "Stream",
    "Timing",
    "Variable",
    "Variables",
    "decode_base64",
    "image_of",
    "output_text",
    "stream_text",
    "strip_ansi",
]
