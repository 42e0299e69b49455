"""Results of cells that are found again: what is asked of the cache, and the cells that have not run for it yet."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from kernelexec.cache import Store, Trail, after, key, new_run, seen_of, written
from kernelexec.cells import Cell, CodeCell
from kernelexec.config import Config
from kernelexec.kernel import Kernel
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector
from kernelexec.provisioning import Place
from kernelexec.provisioning.host.writable_paths import import_path
from kernelexec.provisioning.launch.environment import environment_of
from kernelexec.replay_safety import PASSING
from kernelexec.results import ExecutionResult, Timing
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.result_builder import conclude
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.workspace import Contents
from kernelexec.workspace.contexts import contexts

logger = logging.getLogger("kernelexec")

FOUND = "From the cache: an earlier session ran it, and here it runs before the next cell that is not found."
#: What text shows of a place in memory, or of the kernel's process, which is another one each time.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b|\bipykernel_\d+\b")
#: How long the kernel is asked for its environment, in seconds.
_ASK_SECONDS = 10.0
#: Results of another form of these keys, or of results, are not found.
_FORM = 4
#: What is run for nothing but to have all run that was before.
NOTHING = "pass"
_LINE_CHARS = 80


@dataclass(frozen=True, slots=True)
class Postponed:
    """A cell whose result was found, and that its kernel has not run."""

    source: str
    timeout: float
    overruled: bool
    key: str
    seen: str
    files: str

    @property
    def line(self) -> str:
        """Its first line, for a message."""
        return next((line for line in self.source.splitlines() if line.strip()), "")[:_LINE_CHARS]


def caching_of(config: Config, place: Place, workspace: Path, notebook: Path | None, note: Path) -> Caching | None:
    """What a session has that finds results again; None for one that does not."""
    chosen = config.cache
    if not chosen.enabled or place.secrets is not None or config.container.mode == "ephemeral":
        return None
    if chosen.place.resolve().is_relative_to(workspace.resolve()):  # cells could write there
        logger.warning("kernelexec.cache_in_workspace", extra={"cache": str(chosen.place), "workspace": str(workspace)})
        return None
    store = Store(chosen.place, chosen.size_bytes)
    return Caching(store, config, place, workspace=workspace, notebook=notebook, note=note)


class Caching:
    """What one session finds and keeps. Cells take turns, so there is one at a time.

    Args:
        store: where results are kept.
        config: the session's.
        place: where its kernels run.
        workspace: its workspace, with ``notebook``, which does not count among its files.
        note: the file that tells a new owner of cells that have not run.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        place: Place,
        *,
        workspace: Path,
        notebook: Path | None,
        note: Path,
    ) -> None:
        self._store = store
        self._config = config
        self._place = place
        seen = (context.path for context in contexts(config))
        self._contents = Contents(workspace, seen, notebook=notebook.name if notebook else None)
        self._note = note
        self._epoch = 0
        self._trail = Trail.lost()
        self._files: str | None = None
        self._stamp = ""
        self._postponed: deque[Postponed] = deque()

    @property
    def behind(self) -> bool:
        """Whether the kernel has cells to run yet."""
        return bool(self._postponed)

    def take_over(self, epoch: int) -> None:
        """Go on with a kernel that another owner had, and with what it had not run."""
        self._epoch, self._trail = epoch, Trail.lost()
        with suppress(OSError, ValueError, TypeError):
            self._postponed = deque(Postponed(**said) for said in json.loads(self._note.read_bytes()))

    async def begin(self, turn: Turn, keeper: Keeper, kernel: Kernel) -> None:
        """Notice that there is another kernel since the last turn."""
        await self._notice(turn, keeper, kernel)
        if not turn.own:
            self._files = await anyio.to_thread.run_sync(self._contents.digest)
            self._stamp = await anyio.to_thread.run_sync(self._contents.stamp)

    async def _notice(self, turn: Turn, keeper: Keeper, kernel: Kernel) -> None:
        if keeper.epoch == self._epoch:
            return
        if self._postponed:
            told = f"{len(self._postponed)} cell(s) whose results came from the cache had not run in the kernel that ended."
            turn.remarks.append(told)
            self._set(())
        self._epoch, self._trail = keeper.epoch, Trail.lost()
        said = await kernel.ask("control", protocol.ENVIRONMENT_REQUEST, {}, patience=_ASK_SECONDS)
        if said is not None and said.get("status", "ok") == "ok":
            begins = [_FORM, self._surroundings(), said]
            besides = import_path(environment_of(self._config))
            self._trail = Trail(begins, lambda module: not self._contents.holds_module(module, besides))

    async def find(self, turn: Turn) -> ExecutionResult | None:
        """The result of an earlier cell that was this one, in all that can be seen; None where there is none."""
        if turn.own or not isinstance(turn.cell, CodeCell) or self._files is None:
            return None
        return await anyio.to_thread.run_sync(self._store.get, key(self._trail.shown, turn.cell.source, self._files))

    def postpone(self, turn: Turn, found: ExecutionResult) -> None:
        """Take a result that was found for this turn's: its cell runs later."""
        assert self._files is not None
        seen, source = seen_of(found), turn.cell.source
        kept = key(self._trail.shown, source, self._files)
        self._trail.judge(turn.cell)
        self._trail.shown = after(self._trail.shown, written(turn.cell), found.execution_id, seen, self._files)
        self._set((*self._postponed, Postponed(source, turn.timeout, turn.overruled, kept, seen, self._files)))

    async def ran(self, turn: Turn, result: ExecutionResult) -> None:
        """Go on after a cell that was run, and keep its result if it may be found again."""
        if turn.own:
            if turn.cell.request == NOTHING:
                return
            if turn.cell.request != protocol.SERVE_PACKAGES_SOURCE or self._trail.followed:
                self._trail.lose()
            else:
                self._epoch = 0  # the packages are others now: it begins anew
            return
        error, before = result.error, self._trail.run
        lasting = self._trail.judge(turn.cell, ename=None if error is None else error.ename)
        run = self._go_on(turn.cell, result, self._files or "")
        self._trail.shown = self._trail.run
        whole = (
            result.ok
            and result.state == "kept"
            and not (result.interrupted or result.truncated or result.late or turn.asked_input)
        )
        if self._files is None or not (lasting and whole) or result.output_ref is not None or _ADDRESS.search(result.text):
            return
        if await anyio.to_thread.run_sync(self._contents.stamp) == self._stamp:  # it has written none of them
            await self._keep(key(before, turn.cell.source, self._files), run, result)

    def _go_on(self, cell: Cell, result: ExecutionResult, files: str) -> str:
        """Have the kernel be behind this cell; the name of its run."""
        run = new_run()
        self._trail.run = after(self._trail.run, written(cell), run, seen_of(result), files)
        return run

    async def _keep(self, where: str, run: str, result: ExecutionResult) -> None:
        kept = replace(result, files=(), notes=(), timing=Timing(), execution_id=run, session="")
        await anyio.to_thread.run_sync(self._store.put, where, kept)

    async def catch_up(self, turn: Turn, keeper: Keeper, collector: Callable[..., Collector]) -> str | None:
        """Run, before this turn's cell, what has not run yet; a sentence where the turn is not to run for that.

        Raises:
            KernelStartFailed, KernelConnectionFailed: see ``Keeper.start``.
        """
        while self._postponed:
            kernel = await keeper.start()
            await self._notice(turn, keeper, kernel)
            if not self._postponed:
                break
            first = self._postponed[0]
            self._set(tuple(self._postponed)[1:])
            same = await anyio.to_thread.run_sync(self._contents.digest) == first.files
            if not same:
                turn.remarks.append(
                    f"Files have changed since a cell was found in the cache, which ran only now: {first.line!r}."
                )
            result = await self._run(turn, first, keeper, kernel, collector)
            if turn.interrupt_asked:
                self._trail.lose()
                return (
                    f"Cancelled while a cell ran whose result had come from the cache, which was interrupted: {first.line!r}."
                )
            before = self._trail.run
            run = self._go_on(CodeCell(first.source), result, first.files)
            if seen_of(result) != first.seen:
                self._differs(turn, first, result)
            elif same:  # of this run now, as all that was before it
                await self._keep(key(before, first.source, first.files), run, result)
            else:
                self._trail.lose()
            self._trail.shown = self._trail.run if not self._postponed else self._trail.shown
        return None

    async def _run(
        self, turn: Turn, one: Postponed, keeper: Keeper, kernel: Kernel, collector: Callable[..., Collector]
    ) -> ExecutionResult:
        """Run a cell that was found, ahead of the turn's own."""
        stands_for = Turn(CodeCell(one.source), timeout=one.timeout, isolation=turn.isolation)
        stands_for.collector = collector(self._config.output, displays=kernel.displays)
        late = collector(self._config.output.late, displays=kernel.displays)
        execution = kernel.submit(stands_for.cell.request, stands_for.collector, late, overruled=one.overruled)
        stands_for.execution = turn.execution = execution
        if turn.interrupt_asked:
            execution.ask_interrupt()
        try:
            verdict = await keeper.mind(kernel, execution, one.timeout)
        finally:
            turn.execution = None
        turn.remarks += verdict.notes
        if keeper.loss is not None:
            keeper.loss = replace(keeper.loss, told=False)  # no result of its own tells it
        return conclude(stands_for, verdict, session="", epoch=keeper.epoch, files=_no_files)

    def _differs(self, turn: Turn, one: Postponed, result: ExecutionResult) -> None:
        self._trail.lose()
        self._store.drop(one.key)
        what = "showed something else" if result.ok else f"ended with {result.error.ename if result.error else result.status}"
        turn.remarks.append(
            f"A cell whose result came from the cache ran now, and {what}: {one.line!r}. The variables are of this run."
        )

    def _set(self, postponed: Iterable[Postponed]) -> None:
        """Have these run later, and a new owner of the kernel know it."""
        self._postponed = deque(postponed)
        try:
            if not self._postponed:
                self._note.unlink(missing_ok=True)
                return
            said = [{name: getattr(one, name) for name in Postponed.__slots__} for one in self._postponed]
            with open(os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123 - rights
                json.dump(said, file)
        except OSError:
            logger.exception("kernelexec.postponed_not_noted", extra={"note": str(self._note)})

    def _surroundings(self) -> Mapping[str, Any]:
        """What a cell's outcome may hang on beside its kernel's own environment, and not on which process asks."""
        config, place = self._config, self._place
        in_container = config.isolation == "container"
        chosen = config.container.model_dump(mode="json") if in_container else {}
        given = {
            name: value
            for name, value in ({} if in_container else environment_of(config)).items()
            if not PASSING.fullmatch(name)
        }
        return {
            "isolation": place.isolation,
            "cwd": place.cwd,
            "online": config.online,
            "prefix": config.programs.words,
            "confinement": config.confinement.model_dump(mode="json"),
            "context": [(place.inside(str(one.path)), one.permission) for one in config.context_paths],
            "variables": {**given, **config.environment.set},
            "container": {name: chosen.get(name) for name in ("image", "python", "environment", "mounts", "sudo")},
        }


def _no_files(_cell: int, _outputs: object) -> tuple[str, ...]:
    return ()
