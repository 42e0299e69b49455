"""One turn at its place in the kernel: from its submission to its finished result, with all that is kept of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kernelexec.config import Config
from kernelexec.errors import KernelNotAnswering
from kernelexec.events import CellStarted, DisplayUpdated, Event, Hook, OutputHeard
from kernelexec.kernel import Execution, Kernel
from kernelexec.outputs import Collector, MaskedCollector, Veil, feed
from kernelexec.results import ExecutionResult, Output
from kernelexec.secrets import SecretStore
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import OnOutput, Turn
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.masking import sealed
from kernelexec.session.cells.result_builder import conclude, lost_track
from kernelexec.session.cells.result_cache import FOUND, Caching
from kernelexec.session.cells.stdin import answering
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.kernels.lost_state import Loss, loss_told
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.workspace import DisplayFiles, SpillFile, Watch

logger = logging.getLogger("kernelexec")


class Runner:
    """Runs the turns of one session, one at a time."""

    def __init__(
        self,
        session: str,
        config: Config,
        kernels: Kernels,
        *,
        workspace: Path,
        spills: Path,
        notebook: Path | None,
        requests: Requests,
        secrets: SecretStore | None,
        tell: Callable[[Event], None],
        tell_output: Callable[[Event], None] | None = None,
        permission: Permission,
        caching: Caching | None = None,
    ) -> None:
        self._session = session
        self._config = config
        self._late = config.output.late
        self._permission = permission
        self._caching = caching
        self._kernels = kernels
        self._workspace = workspace
        self._spills = spills
        self._requests = requests
        self._secrets = secrets
        self._tell = tell
        self._tell_output = tell_output
        self._watch = Watch(workspace, ignore=frozenset({notebook.name} if notebook else ()))

    def refuses(self, turn: Turn) -> str | None:
        """Why a turn may not run, where that is known at once."""
        return self._permission.refuses(turn)

    async def run(self, turn: Turn) -> ExecutionResult | str:
        """Run a turn to its end, whatever that is; a sentence that says why, where nothing ran.

        Raises:
            KernelStartFailed, KernelConnectionFailed, Refused: nothing ran.
        """
        with turn.deciding:
            if (why := await self._permission.refused(turn)) is not None:
                return why
        if turn.deciding.cancelled_caught:
            return "Cancelled while others decided whether it may run."
        keeper = self._kernels.of(turn.cell)
        with turn.starting:
            kernel, loss = (await keeper.start(), None) if turn.own else await keeper.ready()
        if turn.starting.cancelled_caught:
            return "Cancelled while its kernel started."
        if self._caching is None or turn.in_flight:
            return await self._sent(turn, keeper, kernel, loss)
        outcome = await self._found(self._caching, turn, keeper, kernel, new=loss is not None)
        if outcome is not None:
            return outcome
        kernel, later = (await keeper.start(), None) if turn.own else await keeper.ready()
        return await self._sent(turn, keeper, kernel, later or loss)

    async def _sent(self, turn: Turn, keeper: Keeper, kernel: Kernel, loss: Loss | None) -> ExecutionResult | str:
        """Have the kernel run a turn's cell, and make of its end what it means; a sentence that says why, where nothing ran."""
        collector = partial(self._collector(), displays=kernel.displays, on_update=self._display_updated)
        turn.collector = self._of_turn(turn, collector)
        late = collector(self._late, on_output=self._heard(turn, None))
        if turn.in_flight:
            turn.execution = await self._resume(turn, keeper, kernel, turn.collector, late)
            if turn.execution is None:
                return lost_track(turn.execution_id, self._session, keeper.epoch, turn.isolation)
        else:
            await self._announce(turn, keeper)
            if keeper.renewing:
                return "Its kernel was restarted before it was sent."
            turn.clock.sent = time.monotonic()
            turn.execution = kernel.submit(
                turn.cell.request,
                turn.collector,
                late,
                counted=not turn.own,
                overruled=turn.own or turn.overruled,
                msg_id=turn.execution_id,
                asks=turn.on_input is not None,
            )
        if turn.interrupt_asked:
            turn.execution.ask_interrupt()
        patience = self._config.budgets.approval
        async with answering(turn, kernel, turn.execution, session=self._session, patience=patience):
            verdict = await keeper.mind(kernel, turn.execution, self._left(turn), own=turn.own)
        turn.clock.ended = time.monotonic()
        loss_told(verdict, loss, keeper.epoch)
        verdict.notes[:0] = turn.remarks
        if kernel.remark is not None and not turn.own:
            verdict.notes.append(kernel.remark)
            kernel.remark = None
        files = _no_files if turn.own else self._files
        networked = self._config.online
        result = conclude(turn, verdict, session=self._session, epoch=keeper.epoch, files=files, networked=networked)
        if self._caching is not None and keeper is self._kernels.python:
            await self._caching.ran(turn, result)
        return self.sealed(result)

    async def _found(
        self, caching: Caching, turn: Turn, keeper: Keeper, kernel: Kernel, *, new: bool
    ) -> ExecutionResult | str | None:
        """What stands in the cache for a turn, or why it cannot run; None where it is to run, with all before it."""
        python = self._kernels.python
        if keeper is python:
            await caching.begin(turn, keeper, kernel)
        found = await caching.find(turn) if keeper is python and not new else None
        if found is None:
            return await caching.catch_up(turn, python, self._collector())
        await self._announce(turn, keeper)
        if keeper.renewing:
            return "Its kernel was restarted before it was sent."
        turn.clock.sent = turn.clock.ended = time.monotonic()
        turn.collector = self._of_turn(turn, self._collector())
        feed(turn.collector, found)
        caching.postpone(turn, found)
        return replace(
            found,
            execution_id=turn.execution_id,
            session=self._session,
            kernel_epoch=keeper.epoch,
            files=self._files(found.execution_count or 0, found.outputs),
            notes=(FOUND, *turn.remarks),
            timing=turn.clock.timing({}),
            cached=True,
        )

    def sealed(self, result: ExecutionResult) -> ExecutionResult:
        """A result without secrets."""
        return sealed(result, self._secrets)

    def _collector(self) -> Callable[..., Collector]:
        """What makes the collectors of one cell."""
        return Collector if self._secrets is None else partial(MaskedCollector, Veil(self._secrets.masker))

    def _of_turn(self, turn: Turn, collector: Callable[..., Collector]) -> Collector:
        output = self._config.output
        turn.spill = SpillFile(self._spills / turn.execution_id, output.spill_bytes)
        return collector(output, spill=turn.spill, on_output=self._heard(turn, turn.heard))

    def _files(self, cell: int, outputs: tuple[Output, ...]) -> tuple[str, ...]:
        """The files that a cell made or changed, those that its displays become included."""
        saver = DisplayFiles(self._workspace, self._config.output.files_bytes if self._config.save_displays else 0)
        saved = saver.save(cell, outputs)
        return tuple(dict.fromkeys((*self._watch.changes(), *saved)))

    async def _announce(self, turn: Turn, keeper: Keeper) -> None:
        """Have it known, on the disk if its request has a name, that the turn is about to be sent."""
        if not turn.own:
            epoch, name = keeper.epoch, turn.request_id
            self._tell(CellStarted(self._session, turn.execution_id, turn.shown, epoch, name, turn.timeout))
        if turn.request_id is not None:
            await self._requests.secure(turn.request_id)

    async def _resume(
        self, turn: Turn, keeper: Keeper, kernel: Kernel, collector: Collector, late: Collector
    ) -> Execution | None:
        """A cell that another owner had sent; None where nobody can know what became of it."""
        patience = max(self._left(turn), self._config.budgets.start)
        try:
            return await kernel.resume(turn.execution_id, collector, late, patience=patience)
        except KernelNotAnswering:
            logger.exception("kernelexec.cell_not_resumed", extra={"session": self._session})
            await keeper.kill("timeout")
            return None

    def _left(self, turn: Turn) -> float:
        """How long a turn may still run, in seconds; one that is in flight at least until its output so far is here."""
        if not turn.in_flight:
            return turn.timeout
        return max(turn.timeout - (time.monotonic() - turn.clock.sent), self._config.budgets.grace)

    def _heard(self, turn: Turn, heard: OnOutput | None) -> OnOutput | None:
        """What takes the outputs of a turn, of which observers are told first if any wants them."""
        tell = self._tell_output
        if tell is None or turn.own:
            return heard

        def told(output: Output) -> None:
            tell(OutputHeard(self._session, turn.execution_id, output))
            if heard is not None:
                heard(output)

        return told

    def _display_updated(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self._tell(DisplayUpdated(self._session, display_id, data, metadata))


def _no_files(_cell: int, _outputs: tuple[Output, ...]) -> tuple[str, ...]:
    return ()


def teller(session: str, hooks: Iterable[Hook]) -> Callable[[Event], None]:
    """What tells all hooks of an event; a hook that raises is logged and harms nobody."""
    told = tuple(hooks)

    def tell(event: Event) -> None:
        for hook in told:
            try:
                hook(event)
            except Exception:
                logger.exception("kernelexec.hook_failed", extra={"session": session, "event": type(event).__name__})

    return tell
