"""One kernel process, from its start to the end of its last descendant.

The kernel is taken to be hostile: every wait and every growth is bounded, and its statements are checked where they can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from anyio.abc import TaskGroup

from kernelexec.config import Config
from kernelexec.errors import KernelConnectionFailed
from kernelexec.events import KernelContainer
from kernelexec.kernel.client import KernelClient
from kernelexec.kernel.confinement_report import ConfinementReport
from kernelexec.kernel.death import Death
from kernelexec.kernel.execution import Execution
from kernelexec.kernel.interrupts import Interrupter
from kernelexec.kernel.process import KernelProcess
from kernelexec.kernel.resource_usage import Usage
from kernelexec.kernel.shutdown import KernelStopper, ReusableKernelHost
from kernelexec.kernel.startup import KernelStarter
from kernelexec.kernel.startup_children import StartupChildren
from kernelexec.kernel.variable_names import VariableNames
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector, Displays
from kernelexec.policy import CommandRules, Refusal
from kernelexec.provisioning import Backend, Handover, InstalledSpec, LocalBackend, RuntimeDirectory, Transport
from kernelexec.results.environments import venv_note
from kernelexec.secrets import SecretStore

_IMPORT_MODULE = "try: __import__('importlib').import_module({!r})\nexcept BaseException: pass"
#: Cells after which the first cell of a session copies no more pages of memory, and runs no more unspecialised bytecode.
_WARM_UP_CELLS = 10
#: How many refusals of programs are reported for a cell.
_REFUSALS_MAX = 5


class Kernel:
    """One kernel process. ``start`` or ``take_over`` begins its life and ``stop`` ends it; ``submit`` sends it cells."""

    def __init__(
        self,
        config: Config,
        runtime: RuntimeDirectory,
        *,
        cwd: str,
        identity: bytes,
        installed: InstalledSpec | None = None,
        backend: Backend | None = None,
        host: ReusableKernelHost | None = None,
    ) -> None:
        process = self._process = KernelProcess(config, runtime, backend or LocalBackend(config, cwd), installed)
        self.variable_names = VariableNames()
        self.usage = Usage(lambda: process.provisioner)
        self.displays = Displays()
        self.remark: str | None = None
        """A note for the kernel's next result."""
        self.interrupter = Interrupter(process)
        self._commands = CommandRules.from_config(config)
        self._refusals: list[str] = []
        self._allows_all = False
        self._stopper = KernelStopper(process, host)
        self._starter = KernelStarter(
            process,
            self._stopper,
            self.usage,
            self.variable_names,
            identity=identity,
            on_metadata=self._on_metadata,
            judges_programs=self._commands.has_rules,
        )

    @property
    def client(self) -> KernelClient:
        """The connection to the kernel.

        Raises:
            KernelConnectionFailed: the kernel has not been started.
        """
        if self._process.client is None:
            raise KernelConnectionFailed("the kernel has no connection yet")
        return self._process.client

    @property
    def alive(self) -> bool:
        """Whether the process lives and its channels are connected."""
        return self._process.alive

    @property
    def death(self) -> Death | None:
        """How the process ended; None while it lives."""
        return self._process.death

    @property
    def on_death(self) -> Callable[[Death], None] | None:
        """The function that is called once when the process has ended."""
        return self._process.on_death

    @on_death.setter
    def on_death(self, function: Callable[[Death], None] | None) -> None:
        self._process.on_death = function

    @property
    def is_unreachable(self) -> bool:
        """Whether the state of the process is unknown at the moment, since the container engine does not answer."""
        return self._process.provisioner is not None and self._process.provisioner.is_unreachable

    @property
    def transport(self) -> Transport:
        """How the channels are reached."""
        return self._process.transport

    @property
    def container(self) -> KernelContainer | None:
        """The container of the process; None on this machine."""
        return self._process.container

    @property
    def startup_children(self) -> StartupChildren | None:
        """The children of a kernel without our launcher."""
        return self._process.startup_children

    @property
    def confinement(self) -> ConfinementReport:
        """The confinement that the launcher reported before any cell ran."""
        return ConfinementReport.of(self._process.launcher_info)

    @property
    def connection_file(self) -> Path:
        """The file by which any Jupyter client can attach while the process lives."""
        return self._process.runtime.connection_file

    async def start(self, tasks: TaskGroup) -> None:
        """Launch and connect: see ``KernelStarter.start``."""
        await self._starter.start(tasks)

    async def take_over(self, tasks: TaskGroup, handover: Handover) -> None:
        """Become the owner of a living process: see ``KernelStarter.take_over``."""
        await self._starter.take_over(tasks, handover)

    async def wait_exit(self, patience: float) -> bool:
        """Return whether the process ends within ``patience`` seconds, after it was asked to."""
        return await self._stopper.wait_exit(patience)

    async def kill(self) -> None:
        """Kill the process and all its descendants: see ``KernelStopper.kill``."""
        await self._stopper.kill()

    async def stop(self, patience: float) -> None:
        """End the kernel for good: see ``KernelStopper.stop``."""
        await self._stopper.stop(patience)

    def take_host(self) -> ReusableKernelHost | None:
        """Give away the container that can run the next kernel, after ``kill``; None if there is none."""
        return self._stopper.take_host()

    def submit(
        self,
        code: str,
        collector: Collector,
        late: Collector,
        *,
        counted: bool = True,
        overruled: bool = False,
        msg_id: str | None = None,
        asks: bool = False,
    ) -> Execution:
        """Send a cell under ``msg_id``; a cell that is not ``counted`` takes no execution count.

        With ``overruled`` the command rules hold for no program that is started before the next cell. `input()` needs ``asks``:
        the execution's ``on_input_request`` gets the request, and ``client.answer`` answers it. A kernel without our launcher
        cannot ask.

        Raises:
            KernelConnectionFailed: the kernel is gone; nothing was sent.
        """
        self.usage.begin_cell()
        self._allows_all = overruled
        installed = self._process.installed is not None
        execution = self.client.submit(code, collector, late, counted=counted, msg_id=msg_id, asks=asks and not installed)
        execution.lingers = installed
        return execution

    def confirms_state(self, execution: Execution) -> bool:
        """Return whether the reply carries the token of this process's launcher, so that the state is certainly kept."""
        info = execution.reply_metadata.get(protocol.METADATA_KEY)
        return self.alive and isinstance(info, dict) and info.get("token") == self._process.token

    def mask(self, secrets: SecretStore) -> None:
        """Mask secrets in everything that an idle kernel sends, before it gets them."""
        self._process.secrets = secrets
        self.client.mask(secrets)

    async def rename(self, session: str, workspace: str) -> None:
        """Name the container of an idle kernel after the session that takes it."""
        if self._process.provisioner is not None:
            await self._process.provisioner.rename(session, workspace)
            self._process.container = self._process.provisioner.container_info
            await self._starter.write_handover()

    async def warm_up(self, cwd: str, modules: Iterable[str], *, patience: float) -> None:
        """Run cells without a trace, so that the first cells of a session find code and ``modules`` in memory.

        Each request may take ``patience`` seconds.
        """
        for code in (*(_IMPORT_MODULE.format(name) for name in modules), *[protocol.WARM_UP_SOURCE] * _WARM_UP_CELLS):
            content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
            await self.client.enter(cwd, {}, patience=patience)
            await self.client.request("shell", "execute_request", content, patience=patience)

    def take_refusals(self) -> list[str]:
        """Return the programs that were refused to user code since the last call, in sentences."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def _on_metadata(self, metadata: dict[str, Any]) -> None:
        """Follow the launcher's reports of the user's variables, of memory, and of programs that user code starts."""
        info = metadata.get(protocol.METADATA_KEY)
        if isinstance(info, dict) and info.get("token") == self._process.token:
            self.usage.update(info.get("memory"))
            if (program := info.get("program")) is not None:
                self._judge(program)
            else:
                self.variable_names.update(info)
            if "venv" in info:
                self.remark = venv_note(info["venv"])

    def _judge(self, program: object) -> None:
        """Answer whether user code may start a program, by the command rules."""
        if not isinstance(program, dict):
            return
        text, words = program.get("text"), program.get("words")
        refusal: Refusal | None = None
        if self._allows_all:
            pass
        elif isinstance(text, str):
            refusal = self._commands.check(text)
        elif isinstance(words, list):
            refusal = self._commands.check_words([word for word in words if isinstance(word, str)])
        reason = None if refusal is None else str(refusal)
        self.client.send_nowait(protocol.VERDICT_REQUEST, name=program.get("name"), refused=reason)
        if reason is not None and len(self._refusals) < _REFUSALS_MAX:
            self._refusals.append(f"A program that the cell was to start was refused: {reason}")
