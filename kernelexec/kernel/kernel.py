"""A kernel process, from the start to the end of the last descendant.

The kernel is taken to be hostile: every wait and every growth is bounded, and reports are checked where possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from kernelexec.config import Config
from kernelexec.errors import ContainerGone
from kernelexec.kernel.execution import NAME_CHARS, Execution
from kernelexec.kernel.launcher_reports import ConfinementReport
from kernelexec.kernel.process import KernelProcess, ReusableKernelHost
from kernelexec.kernel.startup import KernelStarter
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector, Displays, WidgetStates
from kernelexec.provisioning import (
    Backend,
    Handover,
    InstalledSpec,
    LocalBackend,
    RunningUserCommand,
    RuntimeDirectory,
    UserCommand,
)
from kernelexec.provisioning.platform import STACKS_SIGNAL
from kernelexec.results import InterruptStep
from kernelexec.results.json_values import is_count
from kernelexec.rules.policy import CommandRules, Refusal
from kernelexec.text import clean_text

if TYPE_CHECKING:
    from kernelexec.rules.secrets import SecretStore

_IMPORT_MODULE = f"{protocol.NOTHING_SOURCE}\ntry: __import__('importlib').import_module({{!r}})\nexcept BaseException: pass"
#: Number of warm-up cells: after these a session's first cell copies no more memory pages and runs specialised bytecode.
_WARM_UP_CELLS = 10
#: Number of refused programs reported for a cell.
_REFUSALS_MAX = 5
_STACKS_BYTES = 64 * 1024
#: Time limit for the writing of stacks, and the pause between two reads, in seconds: nothing reports the end of the writing.
_STACKS_SECONDS, _STACKS_PAUSE = 0.2, 0.005


class Kernel(KernelProcess):
    """A kernel process: begins with ``start`` or ``take_over``, runs cells of ``submit``, and ends with ``stop``."""

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
        super().__init__(config, runtime, backend or LocalBackend(config, cwd), installed, host)
        self.displays = Displays()
        self.widgets = WidgetStates()
        self.next_cell = 1
        """The execution count of the next cell, as reported by the kernel."""
        self.obstacles: object = None
        """The kernel's report of obstacles to a checkpoint after the last cell: see ``read_obstacles``."""
        self.interrupter = Interrupter(self)
        self._commands = CommandRules.from_config(config)
        self._refusals: list[str] = []
        self._allows_all = False
        self._starter = KernelStarter(
            self,
            identity=identity,
            on_metadata=self._on_metadata,
            judges_programs=self._commands.has_rules,
        )

    @property
    def is_unreachable(self) -> bool:
        """Whether the state of the process is unknown because the container engine does not answer at the moment."""
        return self.provisioner is not None and self.provisioner.is_unreachable

    @property
    def confinement(self) -> ConfinementReport:
        """The confinement reported by the launcher before any cell ran."""
        return ConfinementReport.of(self.launcher_info)

    @property
    def connection_file(self) -> Path:
        """The connection file, for any Jupyter client while the process lives."""
        return self.runtime.connection_file

    async def start(self, tasks: TaskGroup) -> None:
        """Launch and connect: see ``KernelStarter.start``."""
        await self._starter.start(tasks)

    async def take_over(self, tasks: TaskGroup, handover: Handover) -> None:
        """Become the owner of a living process: see ``KernelStarter.take_over``."""
        await self._starter.take_over(tasks, handover)

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
        """Send a cell.

        If the kernel is gone, nothing is sent, and the execution ends with the connection.

        Args:
            code: source of the cell.
            collector: takes output up to the end of the cell.
            late: takes output after the end of the cell.
            counted: whether the cell takes an execution count and stands in the history.
            overruled: whether all programs are allowed, against the command rules, until the next cell.
            msg_id: id of the request; None for a new id.
            asks: whether `input()` works: ``on_input_request`` of the execution gets the request, and ``client.answer``
                answers. Without effect in a kernel without our launcher.
        """
        self.usage.begin_cell()
        self._allows_all = overruled
        installed = self.installed is not None
        execution = self.client.submit(code, collector, late, counted=counted, msg_id=msg_id, asks=asks and not installed)
        execution.keeps_late_output = installed
        return execution

    async def start_command(self, command: UserCommand) -> RunningUserCommand:
        """Start a command of a session as another user than the kernel's.

        Raises:
            ContainerGone: the kernel has no provisioner any more; nothing ran.
            EngineFailed: the container engine does not start the command.
        """
        if self.provisioner is None:
            raise ContainerGone("The container is gone.")
        return await self.provisioner.start_command(command)

    def confirms_state(self, execution: Execution) -> bool:
        """Return whether the reply carries the token of this process's launcher, which proves that the state is kept."""
        info = execution.reply_metadata.get(protocol.METADATA_KEY)
        return self.alive and isinstance(info, dict) and info.get("token") == self.token

    def mask(self, secrets: SecretStore) -> None:
        """Mask secrets in all messages of an idle kernel, before the kernel gets the secrets."""
        self.secrets = secrets
        self.client.mask(secrets)

    async def rename(self, session: str, workspace: str) -> None:
        """Name the container of an idle kernel after the kernel's new session."""
        if self.provisioner is not None:
            await self.provisioner.rename(session, workspace)
            self.container = self.provisioner.container_info
            await self._starter.write_handover()

    async def warm_up(self, cwd: str, modules: Iterable[str], *, patience: float) -> None:
        """Run cells without a trace: the first cells of a session then find code and ``modules`` in memory.

        Each request may take ``patience`` seconds.
        """
        for code in (*(_IMPORT_MODULE.format(name) for name in modules), *[protocol.WARM_UP_SOURCE] * _WARM_UP_CELLS):
            content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
            await self.client.enter(cwd, {}, patience=patience)
            await self.client.request("shell", "execute_request", content, patience=patience)

    def take_refusals(self) -> list[str]:
        """Return sentences on programs refused to user code since the last call."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def _on_metadata(self, metadata: dict[str, Any]) -> None:
        """Take the launcher's reports of the user's variables, of memory, and of programs started by user code."""
        info = metadata.get(protocol.METADATA_KEY)
        # Only this process's launcher has the token, but a cell can read it there: so all values are checked.
        if isinstance(info, dict) and info.get("token") == self.token:
            self.usage.update(info.get("memory"))
            if isinstance(report := info.get("obstacles"), dict):
                self.obstacles = report.get("obstacles")
            if (program := info.get("program")) is not None:
                self._judge(program)
            else:
                self.variable_names.update(info)
                self.next_cell = count if is_count(count := info.get("next_cell")) else self.next_cell
            if "programs" in info:
                from kernelexec.results.session_contents import programs_note  # noqa: PLC0415 - few cells change it

                self.remark = programs_note(info["programs"])

    def _judge(self, program: object) -> None:
        """Decide by the command rules whether user code may start a program, and send the answer."""
        if not isinstance(program, dict):
            return
        text, words, name = program.get("text"), program.get("words"), program.get("name")
        refusal: Refusal | None = None
        if self._allows_all:
            pass
        elif isinstance(text, str):
            refusal = self._commands.check(text)
        elif isinstance(words, list):
            refusal = self._commands.check_words([word for word in words if isinstance(word, str)])
        reason = None if refusal is None else str(refusal)
        # The launcher holds the program until the verdict, under the name in its question.
        if isinstance(name, str):
            self.client.send_nowait(protocol.VERDICT_REQUEST, name=clean_text(name[:NAME_CHARS]), refused=reason)
        if reason is not None and len(self._refusals) < _REFUSALS_MAX:
            self._refusals.append(f"A program that the cell was to start was refused: {reason}")


class Interrupter:
    """The means to end a running cell; `session/kernels/escalation` decides their order."""

    def __init__(self, process: KernelProcess) -> None:
        self._process = process

    @property
    def available_steps(self) -> tuple[InterruptStep, ...]:
        """The steps that may end a cell of this kernel without loss of state, gentlest first."""
        installed = self._process.installed
        if installed is None:
            return "interrupt", "signal", "cancel", "command"
        return ("interrupt",) if installed.interrupt_mode == "message" else ("signal",)

    async def request_interrupt(self, msg_id: str, patience: float) -> bool:
        """Send an `interrupt_request`; return whether the kernel replied within ``patience`` seconds.

        The launcher may read the request only after the end of the cell, and does not interrupt another cell then.
        """
        content = {"msg_id": msg_id} if self._process.installed is None else {}
        return await self._request("interrupt_request", content, patience) is not None

    async def request_cancel(self, msg_id: str, patience: float) -> bool:
        """Ask the launcher to cancel a top-level await, even if the cell has handled the interrupt signal.

        Return whether the main thread has run Python code since the interrupt. The result is False during a call into compiled
        code, and without a reply: compiled code may keep all threads from answering.
        """
        if not self._process.has_client:
            return True
        reply = await self._request(protocol.CANCEL_REQUEST, {"msg_id": msg_id}, patience)
        return reply is not None and reply.get("is_back") is not False

    async def request_skip(self, msg_id: str, patience: float) -> bool:
        """Ask the launcher to skip a cell that waits for another client's cell; return whether the cell is skipped."""
        if "cancel" not in self.available_steps:
            return False
        reply = await self._request(protocol.SKIP_REQUEST, {"msg_id": msg_id}, patience)
        return reply is not None and reply.get("is_skipped") is True

    async def signal(self, signum: int) -> None:
        """Signal the kernel from outside."""
        process = self._process
        if process.provisioner is not None and process.death is None:
            with suppress(OSError):
                await process.provisioner.send_signal(signum)

    async def kill_processes(self, msg_id: str, patience: float) -> None:
        """Have the launcher kill the processes of a cell, unless the next cell has begun when the launcher reads this."""
        if "command" in self.available_steps:
            await self._request(protocol.KILL_REQUEST, {"msg_id": msg_id}, patience)

    async def _request(self, msg_type: str, content: dict[str, Any], patience: float) -> dict[str, Any] | None:
        """Return the reply to a request on the control channel; None without one in ``patience`` seconds."""
        if not self._process.has_client:
            return None
        return await self._process.client.request("control", msg_type, content, patience=patience)

    async def request_stacks(self) -> None:
        """Have every thread's stack written, if the launcher handles the signal, which would kill any other process.

        Wait until the stacks are complete: the process can crash if a thread runs on while its stack is read.
        """
        runtime = self._process.runtime
        if runtime.is_relayed or (runtime.path / "stacks").exists():
            before = last = await self.read_stacks()
            await self.signal(STACKS_SIGNAL)
            with anyio.move_on_after(_STACKS_SECONDS):
                stacks = before
                # Complete: the text differs from the one before the signal, and two reads in a row are equal.
                while stacks == before or stacks != last:
                    await anyio.sleep(_STACKS_PAUSE)
                    last, stacks = stacks, await self.read_stacks()

    async def read_stacks(self) -> str:
        """Return the stacks from the launcher's file, or from stderr where the launcher sees no file of ours."""
        runtime = self._process.runtime
        if runtime.is_relayed:
            return await self._process.read_stderr()
        return self._process.mask_output(runtime.read_file("stacks", _STACKS_BYTES))
