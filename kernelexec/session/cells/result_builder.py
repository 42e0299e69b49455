"""What became of a turn, as a result: it never ran, it runs, its end is unknown, or all that is known of its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kernelexec.cells import Cell, ShellCell
from kernelexec.diagnosis import diagnose
from kernelexec.kernel import Execution, unread
from kernelexec.outputs import execution_count
from kernelexec.results import Cause, Error, ExecutionResult, Output, Status
from kernelexec.session.cells.cell_run import Turn, Verdict

FilesOf = Callable[[int, tuple[Output, ...]], tuple[str, ...]]
_TOO_LARGE = "{} output(s) were too large to keep and are in no file: make them smaller, or have the code save them."


def snapshot(turn: Turn, session: str, epoch: int) -> ExecutionResult:
    """The result so far of a cell that has not ended."""
    collector = turn.collector
    return ExecutionResult(
        execution_id=turn.execution_id,
        session=session,
        language=turn.cell.language,
        isolation=turn.isolation,
        status="running",
        outputs=collector.outputs() if collector else (),
        kernel_epoch=epoch,
        timing=turn.clock.timing({}),
        truncated=collector.truncated if collector else False,
        total_bytes=collector.total_bytes if collector else 0,
    )


def never_ran(turn: Turn, session: str, epoch: int, why: str) -> ExecutionResult:
    """The result of a cell that was not sent to any kernel."""
    return ExecutionResult(
        execution_id=turn.execution_id,
        session=session,
        language=turn.cell.language,
        isolation=turn.isolation,
        status="aborted",
        exit_code=-1,
        state="unknown",
        kernel_epoch=epoch,
        timing=turn.clock.timing({}),
        diagnosis=turn.refusal.diagnosis if turn.refusal is not None else None,
        notes=(why,),
    )


def lost_track(execution_id: str, session: str, epoch: int, isolation: str) -> ExecutionResult:
    """The result of a cell that had been sent to a kernel, and of whose end nothing is recorded."""
    note = "It was sent to a kernel before, and no outcome is recorded: how far it came nobody can know. It was not run again."
    return ExecutionResult(execution_id, session, "unknown", kernel_epoch=epoch, isolation=isolation, notes=(note,))


def broke_off(turn: Turn, session: str, epoch: int, why: str) -> ExecutionResult:
    """The result of a cell that was sent to a kernel and of whose end nothing is known."""
    return replace(snapshot(turn, session, epoch), status="error", exit_code=1, notes=(why,))


def conclude(
    turn: Turn, verdict: Verdict, *, session: str, epoch: int, files: FilesOf, networked: bool = True
) -> ExecutionResult:
    """Everything that is known of an ended cell as its result; ``files`` gives those of a cell by its number and outputs."""
    assert turn.collector is not None
    assert turn.execution is not None
    collector, said = turn.collector, turn.said()
    reply = turn.execution.reply or {}
    outputs = collector.outputs()
    if verdict.stacks:
        outputs = (*outputs, Error("KernelKilled", "the cell obeyed no interrupt", tuple(verdict.stacks.splitlines())))
    status, exit_code = _status(turn.cell, reply, verdict, said, outputs)
    if unread(reply):
        verdict.notes.append("The kernel's reply was too large to be read: the status is what the outputs say.")
    cause = _ended_by(turn.execution, verdict)
    if status == "error" and cause is None and not any(isinstance(o, Error) for o in outputs):
        outputs = (*outputs, *_error_of_reply(turn.cell, reply))
    if collector.lost_outputs:
        verdict.notes.append(_TOO_LARGE.format(collector.lost_outputs))
    work_dir, count = said.get("work_dir"), execution_count(reply)
    return ExecutionResult(
        execution_id=turn.execution_id,
        session=session,
        language=turn.cell.language,
        isolation=turn.isolation,
        confinement=verdict.confinement,
        status=status,
        execution_count=count,
        outputs=outputs,
        exit_code=exit_code,
        interrupted=verdict.interrupted,
        rung=verdict.rung,
        state=verdict.state,
        kernel_epoch=epoch,
        cause=verdict.cause,
        lost_names=verdict.lost_names,
        files=files(count or 0, outputs),
        truncated=collector.truncated,
        total_bytes=collector.total_bytes,
        output_ref=turn.execution_id if collector.spilled else None,
        diagnosis=diagnose(
            status,
            exit_code,
            verdict.interrupted,
            cause,
            (*outputs, *_exit_of_reply(turn.cell, reply)),
            turn.cell.source,
            limit=verdict.limit,
            networked=networked,
        ),
        timing=turn.clock.timing(said),  # of all that was done here too
        work_dir=work_dir if isinstance(turn.cell, ShellCell) and isinstance(work_dir, str) else None,
        notes=tuple(verdict.notes),
    )


def _status(
    cell: Cell, reply: dict[str, Any], verdict: Verdict, said: dict[str, Any], outputs: tuple[Output, ...]
) -> tuple[Status, int]:
    if verdict.interrupted == "timeout":
        return "error", 124
    if verdict.exit_code is not None:
        return "error", verdict.exit_code or 1
    if verdict.interrupted == "request":
        return "error", 130
    failed = any(isinstance(o, Error) for o in outputs) if unread(reply) else reply.get("status") != "ok"
    code = said.get("exit_code")
    if isinstance(cell, ShellCell) and isinstance(code, int) and (code or not failed):
        return ("error" if code else "ok"), code
    return ("error", 1) if failed else ("ok", 0)


def _ended_by(execution: Execution, verdict: Verdict) -> Cause | None:
    """What ended the kernel amid the cell, or with it.

    None where the kernel lives: then a cause is of the kernel before it, whose end the cell is the first to be told.
    """
    if verdict.interrupted is None:
        return verdict.cause if verdict.exit_code is not None else None
    by_force = verdict.rung in (None, "kill") or execution.end not in ("complete", "incomplete") or execution.asks_exit
    return verdict.cause if by_force or verdict.cause == "timeout" else None


def _exit_of_reply(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """The exit of a cell, with where it was: of that the message about it says nothing."""
    return _error_of_reply(cell, reply) if reply.get("ename") == "SystemExit" else ()


def _error_of_reply(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """The exception that the reply tells of, where the message about it never came."""
    if isinstance(cell, ShellCell) or not isinstance(reply.get("ename"), str):
        return ()
    lines = reply.get("traceback")
    traceback = tuple(str(line)[:4096] for line in (lines if isinstance(lines, list) else [])[:100])
    return (Error(str(reply["ename"])[:1024], str(reply.get("evalue", ""))[:4096], traceback),)
