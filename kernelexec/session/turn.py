"""One cell on its way through a session: what was asked, how far it is, and how its result is put together."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from kernelexec.cells import Cell, ShellCell
from kernelexec.collector import Collector, execution_count
from kernelexec.diagnosis import diagnose
from kernelexec.kernel import Execution, unread
from kernelexec.results import (
    Cause,
    Error,
    ExecutionResult,
    Interrupted,
    Output,
    OutputPage,
    Rung,
    State,
    Status,
    Timing,
)
from kernelexec.workspace import SpillFile
from kernelexec.workspace.spill import MARGIN_BYTES, Grep, page_of

OnOutput = Callable[[Output], None]
FilesOf = Callable[[int, tuple[Output, ...]], tuple[str, ...]]
_TOO_LARGE = "{} output(s) were too large to keep and are in no file: make them smaller, or have the code save them."


@dataclass(slots=True)
class Clock:
    """Moments of one turn on the monotonic clock."""

    asked: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    sent: float = 0.0
    ended: float = 0.0

    def timing(self, said: dict[str, Any]) -> Timing:
        """The seconds between them; CPU and memory as the kernel said them."""
        now = time.monotonic()
        turn = self.turn or now
        sent = self.sent or now
        ended = self.ended or now
        cpu, peak = said.get("cpu_seconds"), said.get("peak_memory_bytes")
        return Timing(
            queue=turn - self.asked,
            start=sent - turn,
            run=ended - sent,
            collect=now - ended,
            wall=now - self.asked,
            cpu_seconds=float(cpu) if isinstance(cpu, int | float) else None,
            peak_memory_bytes=int(peak) if isinstance(peak, int | float) and 0 <= peak < 2**63 else None,
        )


@dataclass(slots=True)
class Verdict:
    """What the end of a cell means, before it is a result."""

    state: State = "unknown"
    cause: Cause | None = None
    exit_code: int | None = None
    interrupted: Interrupted | None = None
    rung: Rung | None = None
    lost_names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    stacks: str = ""
    limit: str = ""
    """The limit of memory that was reached, in words, where that ended the kernel."""


class Turn:
    """One execution from being asked for to its result. ``own`` is a call of this side's: no cell of the user's.

    One that ``began`` at a time on the monotonic clock is in flight: another owner of its kernel sent it.
    """

    def __init__(
        self,
        cell: Cell,
        *,
        timeout: float,
        on_output: OnOutput | None = None,
        request_id: str | None = None,
        own: bool = False,
        isolation: str = "local",
        execution_id: str | None = None,
        began: float | None = None,
    ) -> None:
        self.execution_id = execution_id or uuid.uuid4().hex
        self.cell = cell
        self.request_id = request_id
        self.timeout = timeout
        self.own = own
        self.isolation = isolation
        self.in_flight = began is not None
        self.clock = Clock() if began is None else Clock(began, began, began)
        self.done = asyncio.Event()
        self.answered = asyncio.Event()
        self.result: ExecutionResult | None = None
        self.failure: Exception | None = None
        self.objection: Exception | None = None
        """What the callback of who asked first raised: nobody else's."""
        self.interrupt_asked = False
        self.waiting = anyio.CancelScope()
        self.starting = anyio.CancelScope()
        self.execution: Execution | None = None
        self.spill: SpillFile | None = None
        self.collector: Collector | None = None
        self.held_bytes = 0
        self.spilled_bytes = 0
        self._on_output = on_output

    @property
    def never_ran(self) -> bool:
        """Whether it ended without having been sent to a kernel."""
        return self.result is not None and self.result.status == "aborted"

    def ask_interrupt(self) -> None:
        """Have the cell interrupted, or never run if it still waits."""
        self.interrupt_asked = True
        if not self.in_flight:
            self.waiting.cancel()
            self.starting.cancel()
        if self.execution is not None:
            self.execution.ask_interrupt()

    def heard(self, output: Output) -> None:
        """Pass an output on to the caller's callback; what that raises becomes the caller's, and ends the passing on."""
        if self._on_output is None:
            return
        try:
            self._on_output(output)
        except BaseException as exc:  # noqa: BLE001 - the caller's own, given back to it; here it would end the connection
            self.objection = exc if isinstance(exc, Exception) else RuntimeError(f"on_output raised {exc!r}")
            self._on_output = None
            self.answered.set()

    def conclude(self, result: ExecutionResult) -> None:
        """Set the outcome and let go of what only a running cell needs."""
        self.result = result
        if self.collector is not None:
            self.collector.end()
            self.held_bytes = self.collector.held_bytes
        if self.spill is not None:
            self.spill.close()
            self.spilled_bytes = self.spill.stored_bytes

    def forget(self) -> None:
        """Delete what is kept of it on disk."""
        if self.spill is not None:
            self.spill.remove()

    def answer(self) -> None:
        """Give the outcome to all who wait for it."""
        self.done.set()
        self.answered.set()

    def page(self, offset: int, limit: int, grep: str | None) -> OutputPage:
        """A page of the stream output: from the spill where there is one, else from memory."""
        total = self.collector.stream_bytes if self.collector else 0
        if self.collector is not None and self.collector.spilled and self.spill is not None:
            spill = self.spill
            return spill.grep(grep, offset, limit, total) if grep else spill.page(offset, limit, total)
        raw = (self.collector.raw_text if self.collector else "").encode("utf-8", "replace")
        if grep is None:
            return page_of(raw[offset : offset + limit + MARGIN_BYTES], offset, limit, total, len(raw))
        finder = Grep(grep, offset, limit)
        finder.feed(raw[offset:].decode("utf-8", "ignore"))
        finder.finish()
        return finder.result(total, len(raw))

    def said(self) -> dict[str, Any]:
        """What the launcher said beside its reply."""
        metadata = self.execution.reply_metadata if self.execution else {}
        found = metadata.get("kernelexec")
        return found if isinstance(found, dict) else {}


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
        notes=(why,),
    )


def lost_track(execution_id: str, session: str, epoch: int, isolation: str) -> ExecutionResult:
    """The result of a cell that had been sent to a kernel, and of whose end nothing is recorded."""
    note = "It was sent to a kernel before, and no outcome is recorded: how far it came nobody can know. It was not run again."
    return ExecutionResult(execution_id, session, "unknown", kernel_epoch=epoch, isolation=isolation, notes=(note,))


def broke_off(turn: Turn, session: str, epoch: int, why: str) -> ExecutionResult:
    """The result of a cell that was sent to a kernel and of whose end nothing is known."""
    return replace(snapshot(turn, session, epoch), status="error", exit_code=1, notes=(why,))


def conclude(turn: Turn, verdict: Verdict, *, session: str, epoch: int, files: FilesOf) -> ExecutionResult:
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
    if status == "error" and verdict.cause is None and not any(isinstance(o, Error) for o in outputs):
        outputs = (*outputs, *_error_of_reply(turn.cell, reply))
    if collector.lost_outputs:
        verdict.notes.append(_TOO_LARGE.format(collector.lost_outputs))
    work_dir, count = said.get("work_dir"), execution_count(reply)
    return ExecutionResult(
        execution_id=turn.execution_id,
        session=session,
        language=turn.cell.language,
        isolation=turn.isolation,
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
            status, exit_code, verdict.interrupted, verdict.cause, outputs, turn.cell.source, limit=verdict.limit
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


def _error_of_reply(cell: Cell, reply: dict[str, Any]) -> tuple[Output, ...]:
    """The exception that the reply tells of, where the message about it never came."""
    if isinstance(cell, ShellCell) or not isinstance(reply.get("ename"), str):
        return ()
    lines = reply.get("traceback")
    traceback = tuple(str(line)[:4096] for line in (lines if isinstance(lines, list) else [])[:100])
    return (Error(str(reply["ename"])[:1024], str(reply.get("evalue", ""))[:4096], traceback),)
