"""One run of a cell in a session, from its submission to its result."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from kernelexec.cells import Cell
from kernelexec.kernel import Execution
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector
from kernelexec.policy import Refusal
from kernelexec.policy.decisions import Approver
from kernelexec.results import (
    Cause,
    ExecutionResult,
    Interrupted,
    OnInput,
    Output,
    OutputPage,
    Rung,
    State,
    Timing,
)
from kernelexec.workspace import SpillFile
from kernelexec.workspace.spill import MARGIN_BYTES, Grep, page_of

OnOutput = Callable[[Output], None]


@dataclass(slots=True)
class Clock:
    """Moments of one run on the monotonic clock."""

    asked: float = field(default_factory=time.monotonic)
    turn: float = 0.0
    sent: float = 0.0
    ended: float = 0.0

    def timing(self, usage: dict[str, Any] | None = None) -> Timing:
        """Return the seconds between them, and the use of CPU and memory that the launcher reported."""
        now = time.monotonic()
        turn = self.turn or now
        sent = self.sent or now
        ended = self.ended or now
        usage = usage or {}
        cpu, peak = usage.get("cpu_seconds"), usage.get("peak_memory_bytes")
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
    """The judgement on the end of a cell, before it becomes a result."""

    state: State = "unknown"
    cause: Cause | None = None
    exit_code: int | None = None
    interrupted: Interrupted | None = None
    rung: Rung | None = None
    lost_names: tuple[str, ...] = ()
    confinement: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    stacks: str = ""
    limit: str = ""
    """The memory limit, as text, where reaching it ended the kernel."""


class Turn:
    """One execution from its submission to its result. ``own`` marks an internal call, which is no cell of the user's.

    A run that ``began`` at a time on the monotonic clock is in flight: another owner of its kernel sent it.
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
        approver: Approver | None = None,
        on_input: OnInput | None = None,
        execution_id: str | None = None,
        began: float | None = None,
    ) -> None:
        self.execution_id = execution_id or uuid.uuid4().hex
        self.cell = self.shown = cell
        """``shown`` is the cell for hooks, records and messages, without secrets."""
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
        """The error of the output callback, which belongs to the caller that gave it."""
        self.approver = approver
        self.on_input = on_input
        self.remarks: list[str] = []
        """Notes for the result about its approval."""
        self.refusal: Refusal | None = None
        """The reason why it must not run."""
        self.overruled = False
        """Whether it was approved against the rules."""
        self.is_approved = False
        self.interrupt_asked = False
        self.waiting = anyio.CancelScope()
        self.deciding = anyio.CancelScope()
        self.starting = anyio.CancelScope()
        self.execution: Execution | None = None
        self.spill: SpillFile | None = None
        self.collector: Collector | None = None
        self.held_bytes = 0
        self.spilled_bytes = 0
        self._on_output = on_output

    @property
    def never_ran(self) -> bool:
        """Whether it ended without being sent to a kernel."""
        return self.result is not None and self.result.status == "aborted"

    async def wait(self, seconds: float | None, *, joined: bool = False) -> None:
        """Wait for the result, ``seconds`` at most; an error is raised once.

        Raises:
            Exception: see ``Queue.outcome``.
        """
        with anyio.move_on_after(seconds):
            await (self.done if joined else self.answered).wait()
            if self.objection is None:
                await self.done.wait()
        if self.objection is not None and not joined:
            objection, self.objection = self.objection, None
            raise objection
        if self.failure is not None:  # later callers get the result, which has its text
            failure, self.failure = self.failure, None
            raise failure

    def ask_interrupt(self) -> None:
        """Interrupt the cell, or keep it from running if it still waits."""
        self.interrupt_asked = True
        if not self.in_flight:
            for stage in (self.waiting, self.deciding, self.starting):
                stage.cancel()
        if self.execution is not None:
            self.execution.ask_interrupt()

    def heard(self, output: Output) -> None:
        """Pass an output on to the caller's callback. Its error goes to the caller, and ends the passing on."""
        if self._on_output is None:
            return
        try:
            self._on_output(output)
        except BaseException as exc:  # noqa: BLE001 - raised to the caller; here it would end the connection
            self.objection = exc if isinstance(exc, Exception) else RuntimeError(f"on_output raised {exc!r}")
            self._on_output = None
            self.answered.set()

    def conclude(self, result: ExecutionResult) -> None:
        """Set the result, and release the resources of a running cell."""
        self.result = result
        if self.collector is not None:
            self.collector.end()
            self.held_bytes = self.collector.held_bytes
        if self.spill is not None:
            self.spill.close()
            self.spilled_bytes = self.spill.stored_bytes

    def forget(self) -> None:
        """Delete its files."""
        if self.spill is not None:
            self.spill.remove()

    def answer(self) -> None:
        """Wake all callers that wait for the result."""
        self.done.set()
        self.answered.set()

    def page(self, offset: int, limit: int, grep: str | None) -> OutputPage:
        """Return a page of the stream output, from the spill file where there is one, else from memory."""
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
        """Return the launcher's own part of the reply."""
        metadata = self.execution.reply_metadata if self.execution else {}
        report = metadata.get(protocol.METADATA_KEY)
        return report if isinstance(report, dict) else {}
