"""The values returned by calls: outputs, results, reports and statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.results.file_operations import FileBytes as FileBytes
    from kernelexec.results.file_operations import FileEntry as FileEntry
    from kernelexec.results.file_operations import FileKind as FileKind
    from kernelexec.results.file_operations import FileList as FileList
    from kernelexec.results.file_operations import FilesCopied as FilesCopied
    from kernelexec.results.file_operations import FilesDeleted as FilesDeleted
    from kernelexec.results.file_operations import FileText as FileText
    from kernelexec.results.file_operations import FileWritten as FileWritten
    from kernelexec.results.file_operations import NotCopied as NotCopied
    from kernelexec.results.file_operations import NotDeleted as NotDeleted
    from kernelexec.results.media import Audio as Audio
    from kernelexec.results.media import Image as Image
    from kernelexec.results.model_answers import ModelAnswer as ModelAnswer
    from kernelexec.results.model_answers import make_model_answer as make_model_answer
    from kernelexec.results.model_answers import model_notes as model_notes
    from kernelexec.results.outputs import DisplayData as DisplayData
    from kernelexec.results.outputs import Error as Error
    from kernelexec.results.outputs import ExecuteResult as ExecuteResult
    from kernelexec.results.outputs import Output as Output
    from kernelexec.results.outputs import Stream as Stream
    from kernelexec.results.outputs import best_image as best_image
    from kernelexec.results.outputs import decode_base64 as decode_base64
    from kernelexec.results.outputs import output_text as output_text
    from kernelexec.results.outputs import read_audio as read_audio
    from kernelexec.results.outputs import strip_ansi as strip_ansi
    from kernelexec.results.reports import Attempt as Attempt
    from kernelexec.results.reports import Attempts as Attempts
    from kernelexec.results.reports import Outcome as Outcome
    from kernelexec.results.reports import Replay as Replay
    from kernelexec.results.reports import ReplayedCell as ReplayedCell
    from kernelexec.results.reports import TestCase as TestCase
    from kernelexec.results.reports import TestReport as TestReport
    from kernelexec.results.result import Cause as Cause
    from kernelexec.results.result import CellLine as CellLine
    from kernelexec.results.result import Diagnosis as Diagnosis
    from kernelexec.results.result import ExecutionFailed as ExecutionFailed
    from kernelexec.results.result import ExecutionResult as ExecutionResult
    from kernelexec.results.result import Interrupted as Interrupted
    from kernelexec.results.result import InterruptStep as InterruptStep
    from kernelexec.results.result import OutputPage as OutputPage
    from kernelexec.results.result import Progress as Progress
    from kernelexec.results.result import SecurityError as SecurityError
    from kernelexec.results.result import State as State
    from kernelexec.results.result import Status as Status
    from kernelexec.results.result import Timing as Timing
    from kernelexec.results.running_code import BackgroundCommand as BackgroundCommand
    from kernelexec.results.running_code import BackgroundOutput as BackgroundOutput
    from kernelexec.results.running_code import InputRequest as InputRequest
    from kernelexec.results.running_code import OnInput as OnInput
    from kernelexec.results.session_contents import CodeStatus as CodeStatus
    from kernelexec.results.session_contents import Completion as Completion
    from kernelexec.results.session_contents import Installation as Installation
    from kernelexec.results.session_contents import Package as Package
    from kernelexec.results.session_contents import PythonEnvironment as PythonEnvironment
    from kernelexec.results.session_contents import Restored as Restored
    from kernelexec.results.session_contents import SavedVariable as SavedVariable
    from kernelexec.results.session_contents import Served as Served
    from kernelexec.results.session_contents import SkippedVariable as SkippedVariable
    from kernelexec.results.session_contents import Snapshot as Snapshot
    from kernelexec.results.session_contents import Variable as Variable
    from kernelexec.results.session_contents import Variables as Variables
    from kernelexec.results.usage import CallStatistics as CallStatistics
    from kernelexec.results.usage import KernelStatus as KernelStatus
    from kernelexec.results.usage import LargeVariable as LargeVariable
    from kernelexec.results.usage import LimitsSet as LimitsSet
    from kernelexec.results.usage import MemoryUse as MemoryUse
    from kernelexec.results.usage import Statistics as Statistics
    from kernelexec.results.usage import StatisticsAccumulator as StatisticsAccumulator
    from kernelexec.results.usage import Stats as Stats

#: The names by their modules. A module is imported at the first use of one of its names.
_NAMES = {
    "file_operations": (
        "FileBytes FileEntry FileKind FileList FilesCopied FilesDeleted FileText FileWritten NotCopied NotDeleted"
    ),
    "media": "Audio Image",
    "model_answers": "ModelAnswer make_model_answer model_notes",
    "outputs": "DisplayData Error ExecuteResult Output Stream best_image decode_base64 output_text read_audio strip_ansi",
    "reports": "Attempt Attempts Outcome Replay ReplayedCell TestCase TestReport",
    "result": (
        "Cause CellLine Diagnosis ExecutionFailed ExecutionResult Interrupted InterruptStep OutputPage "
        "Progress SecurityError State Status Timing"
    ),
    "running_code": "BackgroundCommand BackgroundOutput InputRequest OnInput",
    "session_contents": (
        "CodeStatus Completion Installation Package PythonEnvironment Restored SavedVariable Served SkippedVariable "
        "Snapshot Variable Variables"
    ),
    "usage": "CallStatistics KernelStatus LargeVariable LimitsSet MemoryUse Statistics StatisticsAccumulator Stats",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
