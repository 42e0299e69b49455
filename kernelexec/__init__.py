"""A stateful code executor for agents: persistent Jupyter kernels, and a reliable result for every cell.

>>> from kernelexec import Executor
>>> with Executor(isolation="local") as executor:
...     session = executor.session("analysis")
...     _ = session.execute("x = 40")
...     print(session.execute("x + 2").text)
42
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import PACKAGE, make_getattr

if TYPE_CHECKING:
    from kernelexec.config import Config as Config
    from kernelexec.config import Container as Container
    from kernelexec.config import ContextPath as ContextPath
    from kernelexec.config import InterpreterOptions as InterpreterOptions
    from kernelexec.config import Mount as Mount
    from kernelexec.config import Profile as Profile
    from kernelexec.errors import CapacityReached as CapacityReached
    from kernelexec.errors import CheckpointRefused as CheckpointRefused
    from kernelexec.errors import Closed as Closed
    from kernelexec.errors import Disabled as Disabled
    from kernelexec.errors import FileRefused as FileRefused
    from kernelexec.errors import InvalidCode as InvalidCode
    from kernelexec.errors import InvalidConfig as InvalidConfig
    from kernelexec.errors import InvalidPath as InvalidPath
    from kernelexec.errors import InvalidRequest as InvalidRequest
    from kernelexec.errors import InvalidTimeout as InvalidTimeout
    from kernelexec.errors import InvalidWorkDir as InvalidWorkDir
    from kernelexec.errors import IsolationUnavailable as IsolationUnavailable
    from kernelexec.errors import KernelConnectionFailed as KernelConnectionFailed
    from kernelexec.errors import KernelError as KernelError
    from kernelexec.errors import KernelexecError as KernelexecError
    from kernelexec.errors import KernelNotAnswering as KernelNotAnswering
    from kernelexec.errors import KernelStartFailed as KernelStartFailed
    from kernelexec.errors import LimitRefused as LimitRefused
    from kernelexec.errors import NotebookNotWritten as NotebookNotWritten
    from kernelexec.errors import OwnerEnded as OwnerEnded
    from kernelexec.errors import QueueFull as QueueFull
    from kernelexec.errors import Refused as Refused
    from kernelexec.errors import UnknownExecution as UnknownExecution
    from kernelexec.errors import UnknownSession as UnknownSession
    from kernelexec.errors import UnknownVariable as UnknownVariable
    from kernelexec.events import CellAborted as CellAborted
    from kernelexec.events import CellExecuted as CellExecuted
    from kernelexec.events import CellRefused as CellRefused
    from kernelexec.events import CellStarted as CellStarted
    from kernelexec.events import DisplayUpdated as DisplayUpdated
    from kernelexec.events import FilesTouched as FilesTouched
    from kernelexec.events import Hook as Hook
    from kernelexec.events import KernelChanged as KernelChanged
    from kernelexec.events import LateOutputReported as LateOutputReported
    from kernelexec.events import MemoryHigh as MemoryHigh
    from kernelexec.events import OutputReceived as OutputReceived
    from kernelexec.events import SessionAdopted as SessionAdopted
    from kernelexec.events import SessionClosed as SessionClosed
    from kernelexec.events import SessionClosing as SessionClosing
    from kernelexec.events import SessionOpened as SessionOpened
    from kernelexec.executor.blocking import AttachedSession as AttachedSession
    from kernelexec.executor.blocking import Checkpoint as Checkpoint
    from kernelexec.executor.blocking import Executor as Executor
    from kernelexec.executor.blocking import Files as Files
    from kernelexec.executor.blocking import Session as Session
    from kernelexec.executor.blocking import attach as attach
    from kernelexec.executor.control.attached_session import AsyncAttachedSession as AsyncAttachedSession
    from kernelexec.executor.executor import AsyncExecutor as AsyncExecutor
    from kernelexec.executor.executor import ExecutorOptions as ExecutorOptions
    from kernelexec.results import Attempt as Attempt
    from kernelexec.results import Attempts as Attempts
    from kernelexec.results import BackgroundCommand as BackgroundCommand
    from kernelexec.results import BackgroundOutput as BackgroundOutput
    from kernelexec.results import CallStatistics as CallStatistics
    from kernelexec.results import Completion as Completion
    from kernelexec.results import Diagnosis as Diagnosis
    from kernelexec.results import DisplayData as DisplayData
    from kernelexec.results import Error as Error
    from kernelexec.results import ExecuteResult as ExecuteResult
    from kernelexec.results import ExecutionFailed as ExecutionFailed
    from kernelexec.results import ExecutionResult as ExecutionResult
    from kernelexec.results import FileBytes as FileBytes
    from kernelexec.results import FileEntry as FileEntry
    from kernelexec.results import FileList as FileList
    from kernelexec.results import FilesCopied as FilesCopied
    from kernelexec.results import FilesDeleted as FilesDeleted
    from kernelexec.results import FileText as FileText
    from kernelexec.results import FileWritten as FileWritten
    from kernelexec.results import Image as Image
    from kernelexec.results import InputRequest as InputRequest
    from kernelexec.results import Installation as Installation
    from kernelexec.results import LargeVariable as LargeVariable
    from kernelexec.results import LimitsSet as LimitsSet
    from kernelexec.results import MemoryUse as MemoryUse
    from kernelexec.results import NotCopied as NotCopied
    from kernelexec.results import NotDeleted as NotDeleted
    from kernelexec.results import Output as Output
    from kernelexec.results import OutputPage as OutputPage
    from kernelexec.results import Package as Package
    from kernelexec.results import Progress as Progress
    from kernelexec.results import PythonEnvironment as PythonEnvironment
    from kernelexec.results import Replay as Replay
    from kernelexec.results import ReplayedCell as ReplayedCell
    from kernelexec.results import Restored as Restored
    from kernelexec.results import SavedVariable as SavedVariable
    from kernelexec.results import SecurityError as SecurityError
    from kernelexec.results import SkippedVariable as SkippedVariable
    from kernelexec.results import Snapshot as Snapshot
    from kernelexec.results import Statistics as Statistics
    from kernelexec.results import Stats as Stats
    from kernelexec.results import Stream as Stream
    from kernelexec.results import TestCase as TestCase
    from kernelexec.results import TestReport as TestReport
    from kernelexec.results import Timing as Timing
    from kernelexec.results import Variable as Variable
    from kernelexec.results import Variables as Variables
    from kernelexec.rules.policy.decisions import Allow as Allow
    from kernelexec.rules.policy.decisions import Approval as Approval
    from kernelexec.rules.policy.decisions import ApprovalRequest as ApprovalRequest
    from kernelexec.rules.policy.decisions import Approver as Approver
    from kernelexec.rules.policy.decisions import Ask as Ask
    from kernelexec.rules.policy.decisions import Deny as Deny
    from kernelexec.rules.policy.decisions import Proposal as Proposal
    from kernelexec.rules.policy.decisions import Rewrite as Rewrite
    from kernelexec.rules.policy.decisions import Validator as Validator
    from kernelexec.session import AsyncCheckpoint as AsyncCheckpoint
    from kernelexec.session import AsyncFiles as AsyncFiles
    from kernelexec.session import AsyncSession as AsyncSession
    from kernelexec.workspace import ReadTracker as ReadTracker

__version__ = "0.1.0"
#: The public names by their modules. A module is imported at the first use of one of its names: a program pays for its parts.
_NAMES = {
    "executor.blocking": "AttachedSession Checkpoint Executor Files Session attach",
    "config": "Config Container ContextPath InterpreterOptions Mount Profile",
    "executor.control.attached_session": "AsyncAttachedSession",
    "errors": (
        "CapacityReached CheckpointRefused Closed Disabled FileRefused InvalidCode InvalidConfig InvalidPath InvalidRequest "
        "InvalidTimeout InvalidWorkDir IsolationUnavailable KernelConnectionFailed KernelError KernelNotAnswering "
        "KernelStartFailed KernelexecError LimitRefused NotebookNotWritten OwnerEnded QueueFull Refused "
        "UnknownExecution UnknownSession UnknownVariable"
    ),
    "events": (
        "CellAborted CellExecuted CellRefused CellStarted DisplayUpdated FilesTouched Hook KernelChanged "
        "LateOutputReported MemoryHigh OutputReceived SessionAdopted SessionClosed SessionClosing SessionOpened"
    ),
    "executor.executor": "AsyncExecutor ExecutorOptions",
    "rules.policy.decisions": "Allow Approval ApprovalRequest Approver Ask Deny Proposal Rewrite Validator",
    "results": (
        "Attempt Attempts BackgroundCommand BackgroundOutput CallStatistics Completion Diagnosis DisplayData Error "
        "ExecuteResult ExecutionFailed ExecutionResult FileBytes FileEntry FileList FilesCopied FilesDeleted FileText "
        "FileWritten Image InputRequest Installation LargeVariable LimitsSet MemoryUse NotCopied NotDeleted Output "
        "OutputPage Package Progress PythonEnvironment Replay ReplayedCell Restored SavedVariable SecurityError "
        "SkippedVariable Snapshot Statistics Stats Stream TestCase TestReport Timing Variable Variables"
    ),
    "session": "AsyncCheckpoint AsyncFiles AsyncSession",
    "workspace": "ReadTracker",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES, PACKAGE)


def __dir__() -> list[str]:
    """Return the names of this module, unused ones included."""
    return sorted({*globals(), *__all__})
