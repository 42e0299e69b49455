"""A stateful code executor for agents: persistent Jupyter kernels, one honest result for every cell.

>>> from kernelexec import Executor
>>> with Executor(isolation="local") as executor:
...     session = executor.session("analysis")
...     _ = session.execute("x = 40")
...     print(session.execute("x + 2").text)
42
<BLANKLINE>
"""

from __future__ import annotations

from kernelexec.blocking import Executor, Session
from kernelexec.config import Config, Container, Mount, Profile
from kernelexec.errors import (
    CapacityReached,
    Closed,
    Disabled,
    InvalidCode,
    InvalidConfig,
    InvalidRequest,
    InvalidTimeout,
    InvalidWorkDir,
    IsolationUnavailable,
    KernelConnectionFailed,
    KernelError,
    KernelexecError,
    KernelNotAnswering,
    KernelStartFailed,
    QueueFull,
    Refused,
    UnknownExecution,
    UnknownSession,
)
from kernelexec.executor import AsyncExecutor
from kernelexec.hooks import (
    CellAborted,
    CellExecuted,
    CellRefused,
    CellStarted,
    DisplayUpdated,
    Hook,
    KernelChanged,
    OutputHeard,
    SessionAdopted,
    SessionClosed,
    SessionClosing,
    SessionOpened,
)
from kernelexec.results import (
    Completion,
    Diagnosis,
    DisplayData,
    Error,
    ExecuteResult,
    ExecutionFailed,
    ExecutionResult,
    Image,
    LeftOut,
    Output,
    OutputPage,
    Progress,
    Replay,
    ReplayedCell,
    Restored,
    SavedVariable,
    Snapshot,
    Stream,
    Timing,
    Variable,
    Variables,
)
from kernelexec.session import AsyncSession

__version__ = "0.1.0"

__all__ = [
    "AsyncExecutor",
    "AsyncSession",
    "CapacityReached",
    "CellAborted",
    "CellExecuted",
    "CellRefused",
    "CellStarted",
    "Closed",
    "Completion",
    "Config",
    "Container",
    "Diagnosis",
    "Disabled",
    "DisplayData",
    "DisplayUpdated",
    "Error",
    "ExecuteResult",
    "ExecutionFailed",
    "ExecutionResult",
    "Executor",
    "Hook",
    "Image",
    "InvalidCode",
    "InvalidConfig",
    "InvalidRequest",
    "InvalidTimeout",
    "InvalidWorkDir",
    "IsolationUnavailable",
    "KernelChanged",
    "KernelConnectionFailed",
    "KernelError",
    "KernelNotAnswering",
    "KernelStartFailed",
    "KernelexecError",
    "LeftOut",
    "Mount",
    "Output",
    "OutputHeard",
    "OutputPage",
    "Profile",
    "Progress",
    "QueueFull",
    "Refused",
    "Replay",
    "ReplayedCell",
    "Restored",
    "SavedVariable",
    "Session",
    "SessionAdopted",
    "SessionClosed",
    "SessionClosing",
    "SessionOpened",
    "Snapshot",
    "Stream",
    "Timing",
    "UnknownExecution",
    "UnknownSession",
    "Variable",
    "Variables",
]
