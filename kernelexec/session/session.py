"""One agent's session: cells take turns in one kernel, within their budgets, and each ends with a checked verdict."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import anyio

from kernelexec import cells
from kernelexec.config import Config
from kernelexec.events import (
    Hook,
    Ledger,
    Record,
    SessionAdopted,
    SessionClosed,
    SessionClosing,
    SessionOpened,
    SessionReplayed,
    wants_output,
)
from kernelexec.policy.decisions import Approver, Validator
from kernelexec.provisioning import Place
from kernelexec.provisioning.runtime.discovery import POSTPONED, note
from kernelexec.provisioning.runtime.temp_dirs import remove_private
from kernelexec.recorded_history import Past
from kernelexec.results import ExecutionResult, OnInput, Replay, Statistics
from kernelexec.session.asking import Asking
from kernelexec.session.cells.approval import Permission
from kernelexec.session.cells.cell_run import OnOutput
from kernelexec.session.cells.idempotency import Requests
from kernelexec.session.cells.queue import Queue
from kernelexec.session.cells.result_cache import caching_of
from kernelexec.session.cells.runner import Runner, teller
from kernelexec.session.cells.submit import Sending
from kernelexec.session.cells.takeover import Left
from kernelexec.session.features.culling import LastUse
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.kernels.warm_start import NOT_READY, Ready
from kernelexec.session.lifecycle import Life, in_thread
from kernelexec.session.observers.notebook_writer import Scribe
from kernelexec.session.observers.statistics import Counter
from kernelexec.workspace import Workspace

logger = logging.getLogger("kernelexec")


class AsyncSession(Asking, Sending):
    """One agent's persistent kernel. Made by ``AsyncExecutor.session``; cells sent at once run one after the other."""

    def __init__(
        self,
        name: str,
        workspace: Workspace,
        runtime: Path,
        config: Config,
        hooks: Iterable[Hook] = (),
        *,
        record: Record | None,
        ledger: Ledger | None,
        place: Place,
        ready: Ready = NOT_READY,
        validators: Sequence[Validator] = (),
        approver: Approver | None = None,
        on_close: Callable[[AsyncSession], None],
    ) -> None:
        self.name = name
        self.replay: Replay | None = None
        self.notebook = notebook = record.path if record else None
        self.journal = ledger.path if ledger else None
        self.workspace = workspace.path
        self.workspace_inside = place.cwd
        """The same directory, by its path as kernels see it."""
        self.isolation = place.isolation
        self.life = Life(f"Session {name!r}", self._stop, self._remove)
        self._place = workspace
        self._inside, self._outside = place.inside, place.outside
        self._runtime = runtime
        self._config, self._secrets = config, place.secrets
        self._scribe = Scribe(name, record, self.life)
        self._ledger = ledger
        self._requests = requests = Requests(name, ledger)
        self._counter = Counter(lambda: self._config)
        self._used, self._culled, self._culling = LastUse(), None, anyio.CancelScope()
        own = (self._scribe, self._counter, self._used)
        told = [hook for hook in (ledger, *hooks, record, *own) if hook is not None]
        self._tell = tell = teller(name, told)
        listening = [hook for hook in told if wants_output(hook)]
        self._kernels = kernels = Kernels(config, name, runtime, place, self.life, tell)
        self._keeper = kernels.python
        self._keeper.receive(ready)
        self._permission = Permission(name, config, validators, approver, place.secrets)
        self._background = {}
        work_dir, spills = workspace.path, runtime / "out"
        self._caching = caching_of(config, place, work_dir, notebook, runtime / POSTPONED)
        runner = Runner(
            name,
            config,
            kernels,
            workspace=work_dir,
            spills=spills,
            notebook=notebook,
            requests=requests,
            secrets=place.secrets,
            tell=tell,
            tell_output=teller(name, listening) if listening else None,
            permission=self._permission,
            caching=self._caching,
        )
        self._queue = Queue(name, config.capacity, self.life, kernels=kernels, runner=runner, requests=requests, tell=tell)
        self._on_close = on_close

    @property
    def kernel_epoch(self) -> int:
        """How many kernel processes this session has had."""
        return self._keeper.epoch

    @property
    def statistics(self) -> Statistics:
        """What its cells took so far, each of the newest thousand, and all together."""
        return self._counter.statistics

    @property
    def busy(self) -> bool:
        """Whether a cell runs or waits."""
        return self._queue.first is not None

    async def open(self, *, replays: str | None = None, left: Left | None = None) -> None:
        """Have a first kernel; ``replays`` says what will be replayed then. Called by the executor.

        The kernel is a new one, or what an owner that died has ``left``, with the cell that runs in it; where that cannot be
        had, or is not repeated, the first result says that it was lost.

        Raises:
            KernelStartFailed: no kernel came up.
        """
        await self.life.begun.wait()
        self.life.check_open()
        self.life.tasks.start_soon(self._scribe.live)
        if (idle := self._config.capacity.idle_seconds) is not None:
            self.life.tasks.start_soon(self._cull, idle)
        try:
            note(self._runtime, self.name, self.workspace, self.notebook, self.journal)
        except OSError:
            logger.exception("kernelexec.session_not_noted", extra={"session": self.name})
        async with self.life.held(), self._queue.order:
            self._kernels.ended = {} if left is None else left.ended
            if left is not None and (kernel := await self._keeper.take_over(left.handover)) is not None:
                turn = left.turn(self.isolation)
                if self._caching is not None:
                    self._caching.take_over(self._keeper.epoch)
                running = None if turn is None else turn.execution_id
                self._tell(SessionAdopted(self.name, self.workspace, self._keeper.epoch, kernel.container, running))
                if turn is not None:
                    self._queue.add(turn)
                    self._requests.resumed(turn)
                return
            self._tell(SessionOpened(self.name, self.workspace, replays))
            await self._keeper.begin(bereft=replays is None and self._ledger is not None and self._ledger.was_left)

    def replayed(self, replay: Replay, past: Past) -> None:
        """Take note of what came back of an earlier session's past. Called by the executor."""
        self.replay = replay
        self._tell(SessionReplayed(self.name, replay, self.masked_past(past)))

    async def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
        on_input: OnInput | None = None,
    ) -> ExecutionResult:
        """Run a cell of code or shell magic and return what became of it.

        A cell that fails is a result; ``result.raise_for_error()`` makes it an exception. If the caller goes away
        (cancellation) the cell goes on and can be had by ``wait_for``.

        Args:
            code: the cell's source.
            language: ``python``, or the name or language of an installed kernelspec, whose kernel the session then keeps
                beside its Python one; without one ``bash`` is ``execute_command``, and ``javascript`` runs through node.
            stdin: text for the standard input of such a command; nothing else has one.
            timeout: seconds that the cell may run from its start, whatever it prints; the configuration's by default.
            wait: seconds that this call blocks at most; then the result so far comes back with status ``running``.
            request_id: 1 to 200 printable characters that name this request. Sent again, also after a restart of the caller,
                it joins the running cell or gets its first result, and nothing runs twice; where nobody can know what
                became of it, the status is ``unknown``. A cell that never ran is run.
            on_output: called in the event loop with every output as it comes; what it raises is raised here at once,
                while the cell goes on. A request that is sent again brings no outputs but those of its result.
            approver: who is asked about this cell, in the place of the executor's; see ``policy.decisions``.
            on_input: who answers the cell's ``input()``, within ``budgets.approval`` seconds, which are not the cell's.

        Raises:
            InvalidCode, InvalidTimeout, InvalidRequest, QueueFull, Closed: before anything ran.
            KernelStartFailed: a new kernel was needed and did not come up; nothing ran.
        """
        with self._refusals_told("code", code, request_id):
            self.life.check_open()
            cell = await self._kernels.cell(code, language, stdin)
            sent = await self._submit(cell, timeout, wait, on_output, request_id, approver, on_input)
        return await sent()

    async def execute_command(
        self,
        command: str,
        *,
        timeout: float | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        wait: float | None = None,
        request_id: str | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
    ) -> ExecutionResult:
        """Run a shell command in the kernel's place: stdout and stderr apart, its exit code, its own process group.

        ``cd`` and ``export`` last from one command to the next until the kernel is replaced. ``work_dir`` (inside the
        workspace, by its path here or as kernels see it) counts for this command only; ``stdin`` is text for its standard
        input, empty by default.

        Raises:
            InvalidWorkDir: missing, not a directory, or outside of the workspace; and what ``execute`` raises.
        """
        with self._refusals_told("command", command, request_id):
            place = None if work_dir is None else self._inside(self._place.directory(self._outside(work_dir)))
            limit = self._config.capacity.code_bytes
            cell = cells.command(command, work_dir=place, stdin=stdin, limit_bytes=limit)
            sent = await self._submit(cell, timeout, wait, on_output, request_id, approver)
        return await sent()

    async def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """Replace all kernels, or that of one language; their state is lost, a running cell with it.

        Waiting cells run in the new ones. With ``fresh_venv`` what was installed in the session's environment is gone too.

        Raises:
            InvalidRequest: the session has no kernel of that language.
            KernelStartFailed: no kernel came up.
        """
        self.life.check_open()
        chosen = self._kernels.chosen(language)
        if fresh_venv:
            await self._fresh_venv()
        first = self._queue.first
        of_first = self._kernels.of(first.cell) if first is not None else None
        sent = first is not None and (first.execution is not None or first.in_flight)
        for keeper in chosen:
            if sent and keeper is of_first:
                await keeper.kill("request")
            else:
                keeper.renew()
        if first is not None and of_first in chosen and first.collector is not None:
            await first.done.wait()
        if not self.busy:
            async with self.life.held(), self._queue.order:
                for keeper in chosen:
                    if keeper.epoch:
                        await keeper.start()

    async def close(self) -> None:
        """End the session: waiting cells are aborted, the kernel and all that it started end, its private files go.

        Whoever calls it while the session closes already waits for its end too.
        """
        self.life.check_here()
        await self.life.end()

    async def _stop(self) -> None:
        """Called in the session's task when it is to end: every turn ends by this."""
        self._tell(SessionClosing(self.name))
        self._scribe.leave()
        self._culling.cancel()
        self._queue.let_none_begin()
        await self._kernels.stop(0.0 if self.busy else self._config.budgets.stop)

    async def _remove(self) -> None:
        """Called in the session's task when no turn runs any more."""
        try:
            self._queue.end()
            await self._kernels.stop(0.0)
            await self._scribe.close()
            await in_thread(self._remove_files)
        finally:
            self._tell(SessionClosed(self.name))
            if self._ledger is not None:
                self._ledger.close()
            self._on_close(self)

    def _remove_files(self) -> None:
        self._queue.forget()
        remove_private(self._runtime)
