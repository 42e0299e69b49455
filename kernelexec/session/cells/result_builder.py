"""Build the result of a run: aborted, running, of unknown end, or complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelexec.cells import Cell, ShellCell
from kernelexec.diagnosis import diagnose
from kernelexec.kernel import Execution, is_unread
from kernelexec.outputs import execution_count
from kernelexec.results import Cause, Error, ExecutionResult, Output, Status, Timing
from kernelexec.session.cells.cell_run import Turn, Verdict

FilesOf = Callable[[int, tuple[Output, ...]], tuple[str, ...]]
_TOO_LARGE = "{} output(s) were too large to keep and are in no file: make them smaller, or have the code save them."
_UNKNOWN = "The cell was sent to a kernel before, and no outcome is recorded: its effects are unknown. It was not run again."


def _result(turn: Turn, session: str, epoch: int, status: Status) -> ExecutionResult:
    """Return a result with the fields that every result of a run has."""
    return ExecutionResult(
        execution_id=turn.execution_id,
        session=session,
        status=status,
        language=turn.cell.language,
        isolation=turn.isolation,
        kernel_epoch=epoch,
        timing=turn.clock.timing(turn.said()),
    )


def running_result(turn: Turn, session: str, epoch: int) -> ExecutionResult:
    """Return the result so far of a cell that has not ended."""
    result, collector = _result(turn, session, epoch, "running"), turn.collector
    if collector is None:
        return result
    return replace(result, outputs=collector.outputs(), truncated=collector.truncated, total_bytes=collector.total_bytes)


def aborted_result(turn: Turn, session: str, epoch: int, reason: str) -> ExecutionResult:
    """Return the result of a cell that was not sent to any kernel."""
    diagnosis = turn.refusal.diagnosis if turn.refusal is not None else None
    return replace(_result(turn, session, epoch, "aborted"), exit_code=-1, diagnosis=diagnosis, notes=(reason,))


def unknown_result(turn: Turn, session: str, epoch: int, execution_id: str | None = None) -> ExecutionResult:
    """Return the result of a cell that was sent to a kernel, and whose end is not recorded."""
    result = _result(turn, session, epoch, "unknown")
    return replace(result, execution_id=execution_id or turn.execution_id, timing=Timing(), notes=(_UNKNOWN,))


def interrupted_result(turn: Turn, session: str, epoch: int, reason: str) -> ExecutionResult:
    """Return the result of a cell that was sent to a kernel, and whose end this process did not see."""
    return replace(running_result(turn, session, epoch), status="error", exit_code=1, notes=(reason,))


def build_result(
    turn: Turn, verdict: Verdict, *, session: str, epoch: int, files: FilesOf, networked: bool = True
) -> ExecutionResult:
    """Return the complete result of an ended cell; ``files`` returns its files by its number and its outputs."""
    assert turn.collector is not None
    assert turn.execution is not None
    collector, report = turn.collector, turn.said()
    reply = turn.execution.reply or {}
    outputs = collector.outputs()
    if verdict.stacks:
        outputs = (*outputs, Error("KernelKilled", "the cell obeyed no interrupt", tuple(verdict.stacks.splitlines())))
    status, exit_code = _status(turn.cell, reply, verdict, report, outputs)
    if is_unread(reply):
        verdict.notes.append("The kernel's reply was too large to be read: the status follows from the outputs.")
    cause = _ended_by(turn.execution, verdict)
    if status == "error" and cause is None and not any(isinstance(o, Error) for o in outputs):
        outputs = (*outputs, *_error_of_reply(turn.cell, reply))
    if collector.lost_outputs:
        verdict.notes.append(_TOO_LARGE.format(collector.lost_outputs))
    work_dir, count = report.get("work_dir"), execution_count(reply)
    changed = files(count or 0, outputs)
    diagnosis = diagnose(
        status,
        exit_code,
        verdict.interrupted,
        cause,
        (*outputs, *_exit_of_reply(turn.cell, reply)),
        turn.cell.source,
        limit=verdict.limit,
        networked=networked,
    )
    return replace(
        _result(turn, session, epoch, status),  # last, so that its timing has the work above
        confinement=verdict.confinement,
        execution_count=count,
        outputs=outputs,
        exit_code=exit_code,
        interrupted=verdict.interrupted,
        rung=verdict.rung,
        state=verdict.state,
        cause=verdict.cause,
        lost_names=verdict.lost_names,
        files=changed,
        truncated=collector.truncated,
        total_bytes=collector.total_bytes,
        output_ref=turn.execution_id if collector.spilled else None,
        diagnosis=diagnosis,
        work_dir=work_dir if isinstance(turn.cell, ShellCell) and isinstance(work_dir, str) else None,
        notes=tuple(verdict.notes),
    )


def _status(
    cell: Cell, reply: dict[str, Any], verdict: Verdict, report: dict[str, Any], outputs: tuple[Output, ...]
) -> tuple[Status, int]:
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
    return ("error", 1) if failed else ("ok", 0)


def _ended_by(execution: Execution, verdict: Verdict) -> Cause | None:
    """Return the cause that ended the kernel during the cell, or with it.

    None where the kernel lives: the verdict's cause is then that of an earlier kernel, whose loss this cell reports.
    """
    if verdict.interrupted is None:
        return verdict.cause if verdict.exit_code is not None else None
    by_force = verdict.rung in (None, "kill") or execution.end not in ("complete", "incomplete") or execution.asks_exit
    return verdict.cause if by_force or verdict.cause == "timeout" else None


def _exit_of_reply(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """Return the exit of a cell with its traceback, which the message about it does not have."""
    return _error_of_reply(cell, reply) if reply.get("ename") == "SystemExit" else ()


def _error_of_reply(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """Return the exception of the reply, for a cell whose error message never came."""
    if isinstance(cell, ShellCell) or not isinstance(reply.get("ename"), str):
        return ()
    lines = reply.get("traceback")
    traceback = tuple(str(line)[:4096] for line in (lines if isinstance(lines, list) else [])[:100])
    return (Error(str(reply["ename"])[:1024], str(reply.get("evalue", ""))[:4096], traceback),)
