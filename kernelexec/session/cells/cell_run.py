"""One cell on its way through a session: what was asked, how far it is, and how its result is put together."""

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
    confinement: tuple[str, ...] = ()
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
        approver: Approver | None = None,
        on_input: OnInput | None = None,
        execution_id: str | None = None,
        began: float | None = None,
    ) -> None:
        self.execution_id = execution_id or uuid.uuid4().hex
        self.cell = self.shown = cell
        """``shown`` is what is told of it, which may have less in it than what is sent."""
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
        self.approver = approver
        self.on_input = on_input
        self.asked_input = False
        """Whether its cell asked for something that no other run of it may be told again."""
        self.remarks: list[str] = []
        """What the result is to say of how it came to run."""
        self.refusal: Refusal | None = None
        """Why it may not run."""
        self.overruled = False
        """Whether it may run though the rules refuse it."""
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
        """Whether it ended without having been sent to a kernel."""
        return self.result is not None and self.result.status == "aborted"

    def ask_interrupt(self) -> None:
        """Have the cell interrupted, or never run if it still waits."""
        self.interrupt_asked = True
        if not self.in_flight:
            for stage in (self.waiting, self.deciding, self.starting):
                stage.cancel()
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
