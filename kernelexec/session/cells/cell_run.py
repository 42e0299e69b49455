"""A run of a cell in a session, from submission to result."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from kernelexec.cells import Cell
from kernelexec.events import RecordedOutputs
from kernelexec.kernel import Execution, Kernel
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector
from kernelexec.results import ExecutionResult, OnInput, Output, OutputPage, Stream, Timing, output_text
from kernelexec.results.json_values import is_count, is_seconds
from kernelexec.rules.policy import Refusal
from kernelexec.rules.policy.decisions import Approver
from kernelexec.session.kernels.starts import WayBack
from kernelexec.workspace import SpillFile
from kernelexec.workspace.spill import MARGIN_BYTES, Grep, page_of

OnOutput = Callable[[Output], None]
OnBytes = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class CommandStreams:
    """Standard streams of bytes: the input of a command, and the caller's function for its output."""

    stdin: bytes = b""
    on_stdout: OnBytes | None = None


NO_STREAMS = CommandStreams()


@dataclass(slots=True)
class Timestamps:
    """Moments of a run on the monotonic clock; 0 before the moment."""

    submitted: float = field(default_factory=time.monotonic)
    dequeued: float = 0.0
    sent: float = 0.0
    ended: float = 0.0

    def timing(self, usage: dict[str, Any] | None = None) -> Timing:
        """Return the seconds between the moments, and the CPU and memory use reported by the launcher."""
        # a run that ended early has no later moments: its missing stages last 0 s. The launcher's figures come from the
        # kernel, where a cell can change them, so their types are checked.
        now = time.monotonic()
        turn = self.dequeued or now
        sent = self.sent or now
        ended = self.ended or now
        usage = usage or {}
        cpu, peak = usage.get("cpu_seconds"), usage.get("peak_memory_bytes")
        return Timing(
            queue=turn - self.submitted,
            start=sent - turn,
            run=ended - sent,
            collect=now - ended,
            wall=now - self.submitted,
            cpu_seconds=float(cpu) if is_seconds(cpu) else None,
            peak_memory_bytes=peak if is_count(peak) else None,
        )


@dataclass(slots=True, eq=False, weakref_slot=True, kw_only=True)
class CellRun:
    """A cell on its way from submission to result.

    ``internal`` marks cells of this package, not of the user; ``in_flight`` marks cells sent by a previous owner of the kernel.
    """

    cell: Cell
    masked_cell: Cell
    """The cell for hooks, records and messages, without secrets."""
    timeout: float
    isolation: str
    request_id: str | None = None
    internal: bool = False
    keeps_variables: bool = False
    """Whether an internal cell leaves the user's variables unchanged."""
    uses_cache: bool = False
    """Whether the caller declares a cell without side effects, so a stored result may replace the run."""
    choose_checkpoint: Callable[[], Awaitable[WayBack]] | None = None
    """Chooses, in the session's turn, the checkpoint for the kernel's way back before the cell."""
    prepare: Callable[[Kernel], Awaitable[str]] | None = None
    """Returns the source of an internal cell, in the session's turn, for the acquired kernel."""
    on_output: OnOutput | None = None
    approver: Approver | None = None
    on_input: OnInput | None = None
    streams: CommandStreams = NO_STREAMS
    """The streams of a command, until its end."""
    execution_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    in_flight: bool = False
    by_client: bool = False
    """Whether a client in another process sends the cell, not the session's owner."""
    late_cursor: int = 0
    """The end of the late output reported so far, by a later result or at the session's end."""
    timestamps: Timestamps = field(default_factory=Timestamps)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    caller_wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    result: ExecutionResult | None = None
    failure: Exception | None = None
    callback_error: BaseException | None = None
    """The error of the output callback, raised to the caller of the callback."""
    notes: list[str] = field(default_factory=list)
    """Notes for the result about its approval."""
    refusal: Refusal | None = None
    rules_overridden: bool = False
    """Whether the approver allowed the cell against the rules."""
    interrupt_requested: bool = False
    queue_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    approval_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    startup_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    execution: Execution | None = None
    reply_error: tuple[Output, ...] = ()
    """An exception found only in the kernel's reply, as of an unknown magic. Jupyter's notebooks lack it too."""
    spill: SpillFile | None = None
    collector: Collector | None = None
    memory_bytes: int = 0
    spilled_bytes: int = 0

    @property
    def has_not_run(self) -> bool:
        """Whether the run ended before the cell was sent to a kernel."""
        return self.result is not None and self.result.status == "aborted"

    async def wait(self, seconds: float | None, *, joined: bool = False) -> None:
        """Wait for the result, ``seconds`` at most. Each error is raised once, see ``SubmittedCell.wait``."""
        with anyio.move_on_after(seconds):
            await (self.done if joined else self.caller_wakeup).wait()
            if self.callback_error is None:
                await self.done.wait()
        if self.callback_error is not None and not joined:
            callback_error, self.callback_error = self.callback_error, None
            raise callback_error
        if self.failure is not None:  # later callers get the result, which contains the error's text
            failure, self.failure = self.failure, None
            raise failure

    def request_interrupt(self) -> None:
        """Interrupt the cell, or abort a waiting run."""
        self.interrupt_requested = True
        # a previous owner's cell already runs in the kernel: a cancelled scope here would end our wait, not the cell
        if not self.in_flight:
            for stage in (self.queue_scope, self.approval_scope, self.startup_scope):
                stage.cancel()
        if self.execution is not None:
            self.execution.ask_interrupt()

    def deliver_output(self, output: Output) -> None:
        """Pass an output to the caller's callback. An error goes to the caller and ends the deliveries."""
        if self.on_output is None:
            return
        try:
            self.on_output(output)
        except BaseException as exc:  # noqa: BLE001 - raised to the caller; here it would end the connection
            self.on_output = None
            self._keep_callback_error("on_output", exc)

    def deliver_bytes(self, content: bytes) -> bool:
        """Pass bytes of a command's standard output to the caller's function; return whether to send more."""
        if self.streams.on_stdout is None:
            return False
        try:
            self.streams.on_stdout(content)
        except BaseException as exc:  # noqa: BLE001 - as above
            self.streams = NO_STREAMS
            self._keep_callback_error("on_stdout", exc)
            return False
        return True

    def _keep_callback_error(self, name: str, error: BaseException) -> None:
        is_cancellation = isinstance(error, asyncio.CancelledError)  # it would cancel the caller
        self.callback_error = RuntimeError(f"{name} raised {error!r}") if is_cancellation else error
        self.caller_wakeup.set()

    def get_recorded_outputs(self, result: ExecutionResult) -> RecordedOutputs | None:
        """Return the run's outputs for records; None if the result's outputs are the same."""
        collector = self.collector
        if collector is None or not (collector.is_recorded_apart or self.reply_error):
            return None
        added = (output for output in result.outputs[len(collector.outputs()) :] if output not in self.reply_error)
        widgets = collector.widgets.to_metadata() if collector.uses_widgets else {}
        return RecordedOutputs((*collector.recorded_outputs(), *added), widgets, collector.captured_outputs())

    def finish(self, result: ExecutionResult) -> None:
        """Set the result, and release the resources of a running cell."""
        self.result = result
        self.streams = NO_STREAMS
        self.memory_bytes = sum(map(sys.getsizeof, result.files))
        if self.collector is not None:
            self.collector.close()
            self.memory_bytes += self.collector.memory_bytes
        if self.spill is not None:
            self.spill.close()
            self.spilled_bytes = self.spill.stored_bytes

    def delete_files(self) -> None:
        """Delete the files of the run."""
        if self.spill is not None:
            self.spill.remove()

    def wake_callers(self) -> None:
        """Wake all callers that wait for the result."""
        self.done.set()
        self.caller_wakeup.set()

    def read_page(self, offset: int, limit: int, grep: str | None) -> OutputPage:
        """Return a page of the stream output, from the spill file or from memory.

        A previous owner's run has only the result's output.
        """
        if self.collector is not None and self.collector.spilled and self.spill is not None:
            spill, total = self.spill, self.collector.stream_bytes
            return spill.grep(grep, offset, limit, total) if grep else spill.page(offset, limit, total)
        outputs = () if self.result is None else self.result.outputs
        streams = [output for output in outputs if isinstance(output, Stream)]
        raw = (self.collector.raw_text if self.collector else output_text(streams)).encode("utf-8", "replace")
        total = self.collector.stream_bytes if self.collector else len(raw)
        if grep is None:
            return page_of(raw[offset : offset + limit + MARGIN_BYTES], offset, limit, total, len(raw))
        finder = Grep(grep, offset, limit)
        finder.feed(raw[offset:].decode("utf-8", "ignore"))
        finder.finish()
        return finder.result(total, len(raw))

    def get_launcher_report(self) -> dict[str, Any]:
        """Return the launcher's report from the reply."""
        # a kernel of another language has no launcher, and a hostile kernel can send anything as its report
        metadata = self.execution.reply_metadata if self.execution else {}
        report = metadata.get(protocol.METADATA_KEY)
        return report if isinstance(report, dict) else {}
