"""Results of all statuses, and the masking of secrets in results, cells and refusals before callers and hooks get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from kernelexec.cells import Cell, ShellCell
from kernelexec.errors import KernelexecError
from kernelexec.events import CellRefused
from kernelexec.kernel import Execution, is_unread
from kernelexec.launcher.protocol import ENCODED_VALUE
from kernelexec.outputs import read_execution_count
from kernelexec.results import Cause, Diagnosis, Error, ExecutionResult, Output, Status, Timing
from kernelexec.results.json_values import LITERAL_CHARS, read_text
from kernelexec.results.outputs import last_error
from kernelexec.results.session_contents import directory_note
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.session.kernels.verdict import Verdict

if TYPE_CHECKING:
    from kernelexec.rules.recorded_history import History, RecordedCell
    from kernelexec.rules.secrets import SecretStore
    from kernelexec.rules.secrets.store import Masker


CollectFiles = Callable[[int, tuple[Output, ...]], tuple[str, ...]]
_TOO_LARGE = "{} output(s) were too large for this result: look in the notebook or in its files, or make them smaller."
_UNREAD = "{} output(s) were too large to keep and are in no file: make them smaller, or save them in the code."
_PATH_CHARS = 4096
_UNKNOWN = "The cell was sent to a kernel before, and no result is recorded: its effects are unknown. It did not run again."


def _make_result(run: CellRun, session: str, epoch: int, status: Status) -> ExecutionResult:
    """Return a result with the fields common to all results of a run."""
    return ExecutionResult(
        execution_id=run.execution_id,
        session=session,
        status=status,
        language=run.cell.language,
        isolation=run.isolation,
        kernel_epoch=epoch,
        timing=run.timestamps.timing(run.get_launcher_report()),
    )


def build_running_result(run: CellRun, session: str, epoch: int) -> ExecutionResult:
    """Return the result so far of a running cell."""
    result, collector = _make_result(run, session, epoch, "running"), run.collector
    if collector is None:
        return result
    return replace(result, outputs=collector.outputs(), truncated=collector.has_cuts, total_bytes=collector.total_bytes)


def build_aborted_result(run: CellRun, session: str, epoch: int, reason: str) -> ExecutionResult:
    """Return the result of an unsent cell."""
    diagnosis = run.refusal.diagnosis if run.refusal is not None else None
    return replace(_make_result(run, session, epoch, "aborted"), exit_code=-1, diagnosis=diagnosis, notes=(reason,))


def build_unknown_result(run: CellRun, session: str, epoch: int, execution_id: str | None = None) -> ExecutionResult:
    """Return the result of a sent cell without a recorded end."""
    result = _make_result(run, session, epoch, "unknown")
    return replace(result, execution_id=execution_id or run.execution_id, timing=Timing(), notes=(_UNKNOWN,))


def build_interrupted_result(run: CellRun, session: str, epoch: int, reason: str) -> ExecutionResult:
    """Return the result of a sent cell with an end unseen by this process."""
    return replace(build_running_result(run, session, epoch), status="error", exit_code=1, notes=(reason,))


def build_result(
    run: CellRun,
    verdict: Verdict,
    *,
    session: str,
    epoch: int,
    files: CollectFiles,
    networked: bool,
    missing: Mapping[str, Cause],
) -> ExecutionResult:
    """Return the complete result of an ended cell; ``files`` collects files, from the cell's number and outputs.

    ``missing`` are the names of earlier kernels' variables, with the causes of their loss.
    """
    assert run.collector is not None
    assert run.execution is not None
    collector, report = run.collector, run.get_launcher_report()
    reply = run.execution.reply or {}
    outputs = collector.outputs()
    if verdict.interrupted and isinstance(run.cell, ShellCell) and run.cell.persistent:
        # the interrupt ends the command, and may meet our code that waits for it: that says nothing of the command
        outputs = tuple(o for o in outputs if not (isinstance(o, Error) and o.ename == "KeyboardInterrupt"))
    if verdict.stacks:
        outputs = (*outputs, Error("KernelKilled", "the cell obeyed no interrupt", tuple(verdict.stacks.splitlines())))
    status, exit_code = decide_status(run.cell, reply, verdict, report, outputs)
    if is_unread(reply):
        verdict.notes.append("The kernel's reply was too large to be read: the status follows from the outputs.")
    cause = _find_cause(run.execution, verdict)
    if status == "error" and cause is None and not any(isinstance(o, Error) for o in outputs):
        run.reply_error = _read_error(run.cell, reply)
        outputs = (*outputs, *run.reply_error)
    if collector.dropped_displays:
        verdict.notes.append(_TOO_LARGE.format(collector.dropped_displays))
    if collector.unread_outputs:
        verdict.notes.append(_UNREAD.format(collector.unread_outputs))
    work_dir, count = report.get("work_dir"), read_execution_count(reply)
    if (note := directory_note(report.get("directory"))) is not None:
        verdict.notes.append(note)
    changed = files(count or 0, collector.recorded_outputs() if collector.is_recorded_apart else outputs)
    diagnosis: Diagnosis | None = None
    if status == "error":
        from kernelexec.rules.diagnosis import diagnose, find_undefined_name  # noqa: PLC0415 - most cells do not fail

        lost_with = missing.get(name := find_undefined_name(last_error(outputs)))
        diagnosis = diagnose(
            status,
            exit_code,
            verdict.interrupted,
            cause,
            (*outputs, *_read_exit(run.cell, reply)),
            run.cell.source,
            limit=verdict.memory_limit,
            networked=networked,
            other_python=str(report.get("python_with_module") or ""),
            loss="" if lost_with is None else f"{name} was lost with an earlier kernel ({lost_with})",
        )
        if lost_with is not None and verdict.state == "kept":
            verdict.lost_names = (name,)
    return replace(
        _make_result(run, session, epoch, status),  # last, so that its timing includes the work above
        confinement=verdict.confinement,
        execution_count=count,
        outputs=outputs,
        exit_code=exit_code,
        interrupted=verdict.interrupted,
        ended_by=verdict.step,
        state=verdict.state,
        cause=verdict.cause,
        lost_names=verdict.lost_names,
        files=changed,
        truncated=collector.has_cuts,
        total_bytes=collector.total_bytes,
        output_ref=run.execution_id if collector.spilled else None,
        diagnosis=diagnosis,
        literal=read_text(literal, LITERAL_CHARS) if isinstance(literal := report.get("literal"), str) else literal is True,
        exit_status=_read_exit_status(report, verdict),
        work_dir=read_text(work_dir, _PATH_CHARS) if isinstance(run.cell, ShellCell) and isinstance(work_dir, str) else None,
        notes=tuple(verdict.notes),
    )


def decide_status(
    cell: Cell, reply: dict[str, Any], verdict: Verdict, report: dict[str, Any], outputs: tuple[Output, ...]
) -> tuple[Status, int]:
    """Return status and exit code of an ended cell, by the kernel's reply and the launcher's report in it."""
    if verdict.interrupted == "timeout":
        return "error", 124
    if verdict.exit_code is not None:
        return "error", verdict.exit_code or 1
    if verdict.interrupted == "request":
        return "error", 130
    failed = any(isinstance(o, Error) for o in outputs) if is_unread(reply) else reply.get("status") != "ok"
    code = report.get("exit_code")
    if isinstance(cell, ShellCell) and isinstance(code, int) and (code or not failed):
        return ("error" if code else "ok"), code
    if failed and reply.get("ename") == "CalledProcessError" and isinstance(code, int) and code:  # of `%pip` and the like
        return "error", code
    return ("error", 1) if failed else ("ok", 0)


def _read_exit_status(report: dict[str, Any], verdict: Verdict) -> int | None:
    """Return the status of an exit in the code, or of a kernel ended by the code, as with ``os._exit``."""
    status = report.get("exit_status") if verdict.cause != "exited" or verdict.exit_code is None else verdict.exit_code
    return status if isinstance(status, int) and status in range(256) else None


def _find_cause(execution: Execution, verdict: Verdict) -> Cause | None:
    """Return the cause of the kernel's end during the cell, or None if the kernel lives.

    The verdict of a cell in a living kernel may have the cause of an earlier kernel's end, for the cell's report.
    """
    if verdict.interrupted is None:
        return verdict.cause if verdict.exit_code is not None else None
    by_force = verdict.step in (None, "kill") or execution.end not in ("complete", "incomplete") or execution.asks_exit
    return verdict.cause if by_force or verdict.cause == "timeout" else None


def _read_exit(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """Return the exit of a cell with the traceback, found only in the reply."""
    return _read_error(cell, reply) if reply.get("ename") == "SystemExit" else ()


def _read_error(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """Return the exception of the reply, for a cell without an error message."""
    if isinstance(cell, ShellCell) or not isinstance(reply.get("ename"), str):
        return ()
    lines = reply.get("traceback")  # the collector bounds outputs, not replies, so the pieces are cut here
    traceback = tuple(str(line)[:4096] for line in (lines if isinstance(lines, list) else [])[:100])
    return (Error(str(reply["ename"])[:1024], str(reply.get("evalue", ""))[:4096], traceback),)


class ResultMasking:
    """The masking of a session: names of secrets replace the values. Without secrets nothing changes."""

    def __init__(self, session: str, secrets: SecretStore | None) -> None:
        self.secrets = secrets
        self._session = session

    def mask_text(self, text: str) -> str:
        """Return a text with masked secrets."""
        return text if self.secrets is None else self.secrets.masker.mask_text(text)

    def mask_texts(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return texts with masked secrets."""
        return texts if self.secrets is None else self.secrets.masker.mask_texts(texts)

    def mask_value(self, value: Any) -> Any:  # noqa: ANN401 - JSON in, JSON out
        """Return a JSON value with masked secrets."""
        return value if self.secrets is None else self.secrets.masker.mask_value(value)

    def mask_cell(self, cell: Cell) -> Cell:
        """Return a cell with masked secrets."""
        return cell if self.secrets is None else self.secrets.masker.mask_cell(cell)

    def mask_result(self, result: ExecutionResult) -> ExecutionResult:
        """Return a result with masked secrets. The outputs were masked on arrival."""
        if self.secrets is None:
            return result
        masker = self.secrets.masker
        return replace(
            result,
            notes=masker.mask_texts(result.notes),
            files=masker.mask_texts(result.files),
            lost_names=masker.mask_texts(result.lost_names),
            work_dir=result.work_dir and masker.mask_text(result.work_dir),
            literal=False if isinstance(result.literal, str) and result.literal.startswith(ENCODED_VALUE) else result.literal,
            diagnosis=None if result.diagnosis is None else _mask_diagnosis(masker, result.diagnosis),
        )

    def mask_history(self, history: History) -> History:
        """Return an earlier session's cells with masked secrets; the same object without secrets."""
        if self.secrets is None:
            return history
        return replace(history, cells=tuple(_mask_recorded_cell(self.secrets.masker, cell) for cell in history.cells))

    def make_refusal(
        self, kind: Literal["code", "command"], source: object, error: KernelexecError, request_id: object
    ) -> CellRefused:
        """Return the event for a refused cell, and mask the error: the caller gets the same text as the hooks."""
        if self.secrets is not None:
            masker = self.secrets.masker
            error.args = masker.mask_texts(map(str, error.args))
            source = masker.mask_text(source) if isinstance(source, str) else source
        return CellRefused(self._session, kind, source, error, request_id)


def _mask_diagnosis(masker: Masker, diagnosis: Diagnosis) -> Diagnosis:
    line_text, cause = (text and masker.mask_text(text) for text in (diagnosis.line_text, diagnosis.cause))
    kind, message = masker.mask_texts((diagnosis.kind, diagnosis.message))
    calls = tuple(replace(call, text=call.text and masker.mask_text(call.text)) for call in diagnosis.calls)
    hints = masker.mask_texts(diagnosis.hints)
    return replace(diagnosis, kind=kind, message=message, line_text=line_text, cause=cause, hints=hints, calls=calls)


def _mask_recorded_cell(masker: Masker, cell: RecordedCell) -> RecordedCell:
    work_dir, stdin = (text and masker.mask_text(text) for text in (cell.work_dir, cell.stdin))
    return replace(cell, source=masker.mask_text(cell.source), work_dir=work_dir, stdin=stdin)
