"""One kernel process, from its start to its last descendant's end.

It assumes a hostile kernel: nothing here waits without a bound, grows without a bound, or believes what it can check.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from kernelexec.config import Config
from kernelexec.events import InContainer
from kernelexec.kernel.client import Link
from kernelexec.kernel.confinement_report import Confined
from kernelexec.kernel.death import Death
from kernelexec.kernel.execution import Execution
from kernelexec.kernel.input_request import Question
from kernelexec.kernel.quiesce import settled
from kernelexec.kernel.shutdown import Remains
from kernelexec.kernel.startup import Beginning
from kernelexec.kernel.startup_children import Programs
from kernelexec.kernel.usage import Usage
from kernelexec.kernel.variable_names import Names
from kernelexec.kernel.wire.connect import Dialing
from kernelexec.kernel.wire.masked_session import MaskedWire
from kernelexec.launcher import protocol
from kernelexec.outputs import Collector, Displays
from kernelexec.policy import CommandRules, Refusal
from kernelexec.provisioning import (
    InstalledSpec,
    KernelProvisionerBase,
    LocalPlace,
    Place,
    RuntimeDirectory,
    Transport,
)
from kernelexec.results.environments import note_of
from kernelexec.secrets import SecretStore

_IMPORTING = "try: __import__('importlib').import_module({!r})\nexcept BaseException: pass"
#: How many cells leave no page of memory that the first one of a session would have to copy, and no code to be made fast.
_WARM_UP_CELLS = 10
#: How many refusals of programs are told.
_REFUSED_MAX = 5


class Kernel(Beginning):
    """One kernel process. ``start`` or ``take_over``, and ``stop``, bracket its life; in between, ``submit`` sends it cells."""

    def __init__(
        self,
        config: Config,
        runtime: RuntimeDirectory,
        *,
        cwd: str,
        identity: bytes,
        installed: InstalledSpec | None = None,
        place: Place | None = None,
        remains: Remains | None = None,
    ) -> None:
        self.names = Names()
        self.remark: str | None = None
        """What its next result is to say of it."""
        self.usage = Usage(lambda: self._provisioner)
        self.death: Death | None = None
        self.died = asyncio.Event()
        self.displays = Displays()
        self.token = secrets.token_hex(8)
        self.about: dict[str, Any] = {}
        self.container: InContainer | None = None
        self.programs: Programs | None = None
        self.on_death: Callable[[Death], None] | None = None
        self._config = config
        self._commands = CommandRules.of(config)
        self._refused: list[str] = []
        self._overruled = False
        self._runtime = runtime
        self._place = place or LocalPlace(config, cwd)
        self._secrets = self._place.secrets
        self._identity = identity
        self._provisioner: KernelProvisionerBase | None = None
        self._link: Link | None = None
        self._remains = remains
        self._killing = anyio.Lock()
        self._unwanted = False
        self._installed = installed
        self.transport: Transport = "ipc"
        self._called = f"The kernel {installed.name!r}" if installed else "The kernel"
        self._dialing: Dialing | None = None

    @property
    def unseen(self) -> bool:
        """Whether nobody can say now what became of the process."""
        return getattr(self._provisioner, "unseen", False) is True

    @property
    def confinement(self) -> Confined:
        """What holds it within its workspace."""
        return Confined.of(self.about)

    @property
    def connection_file(self) -> Path:
        """By which any Jupyter client can attach while the process lives."""
        return self._runtime.connection_file

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
        """Send a cell, under a ``msg_id`` of choice; what is not ``counted`` takes no execution count.

        With ``overruled`` the rules hold for no program that is started before the next cell. Only what ``asks`` may call
        `input()`: the execution's ``on_question`` is told, and ``answer`` is the way back. Kernels of others cannot ask.

        Raises:
            KernelConnectionFailed: the kernel is gone; nothing was sent.
        """
        assert self._link is not None
        self.usage.begin_cell()
        self._overruled = overruled
        asks = asks and self._installed is None
        execution = self._link.submit(code, collector, late, counted=counted, msg_id=msg_id, asks=asks)
        execution.lingers = self._installed is not None
        return execution

    async def resume(self, msg_id: str, collector: Collector, late: Collector, *, patience: float) -> Execution | None:
        """An execution that the owner before had sent, with all its output from its beginning; None if it is not the newest.

        Raises:
            KernelNotAnswering: the kernel does not say within ``patience`` seconds whether it is.
        """
        assert self._link is not None
        return await self._link.resume(msg_id, collector, late, patience=patience)

    def take_late(self) -> list[Execution]:
        """Executions that have ended, and of which output came since the last call."""
        return self._link.take_late() if self._link is not None else []

    async def answers(self, patience: float) -> bool:
        """Whether the kernel answers on the channel that runs cells, within ``patience`` seconds."""
        return self.alive and self._link is not None and await self._link.answers(patience)

    async def ask(self, channel: str, msg_type: str, content: dict[str, Any], *, patience: float) -> dict[str, Any] | None:
        """See ``Link.ask``; None at once where the kernel does not live."""
        return await self._link.ask(channel, msg_type, content, patience=patience) if self.alive and self._link else None

    def vouched(self, execution: Execution) -> bool:
        """Whether the launcher of this very process put its token beside the reply."""
        said = execution.reply_metadata.get(protocol.METADATA_KEY)
        return self.alive and isinstance(said, dict) and said.get("token") == self.token

    async def enter(self, cwd: str, changes: Mapping[str, str | None], *, patience: float) -> bool:
        """Have an idle kernel go to a directory, and its environment change; whether it did within ``patience`` seconds."""
        content = {"cwd": cwd, "environment": dict(changes)}
        said = await self.ask("control", protocol.ENTER_REQUEST, content, patience=patience)
        return said is not None and said.get("status") == "ok"

    def hide(self, secrets: SecretStore) -> None:
        """Have secrets that an idle kernel is about to be told be masked in all that it says."""
        self._secrets = secrets
        if self._link is not None:
            self._link.wire = MaskedWire(self._link.wire, secrets)

    async def rename(self, session: str, workspace: str) -> None:
        """Have what a session's users see of an idle kernel in a container be called as the session is."""
        rename = getattr(self._provisioner, "rename", None)
        if rename is not None:
            await rename(session, workspace)
            self.container = getattr(self._provisioner, "in_container", None)
            await self._note()

    async def warm_up(self, cwd: str, modules: Iterable[str], *, patience: float) -> None:
        """Have done what leaves no trace, so that the first cells find all they need in memory: modules too, if they are there.

        A request is waited for ``patience`` seconds.
        """
        for code in (
            *(_IMPORTING.format(name) for name in modules),
            *[protocol.WARM_UP_SOURCE] * _WARM_UP_CELLS,
        ):
            content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
            await self.enter(cwd, {}, patience=patience)
            await self.ask("shell", "execute_request", content, patience=patience)

    async def settle(self, execution: Execution, patience: float) -> bool:
        """Whether the kernel answers after a cell; see ``settled``."""
        return self.alive and self._link is not None and await settled(self._link, execution, patience)

    def _learn(self, metadata: dict[str, Any]) -> None:
        """Follow the user's names, and the kernel's memory, as the launcher says them."""
        said = metadata.get(protocol.METADATA_KEY)
        if isinstance(said, dict) and said.get("token") == self.token:
            self.usage.learn(said.get("memory"))
            if (program := said.get("program")) is not None:
                self._judge(program)
            else:
                self.names.learn(said)
            if "venv" in said:
                self.remark = note_of(said["venv"])

    def _judge(self, program: object) -> None:
        """Answer what user code may start, by the rules for commands."""
        if not isinstance(program, dict) or self._link is None:
            return
        text, words = program.get("text"), program.get("words")
        found: Refusal | None = None
        if self._overruled:
            pass
        elif isinstance(text, str):
            found = self._commands.judge(text)
        elif isinstance(words, list):
            found = self._commands.judge_words([word for word in words if isinstance(word, str)])
        why = None if found is None else str(found)
        self._link.tell(protocol.VERDICT_REQUEST, name=program.get("name"), refused=why)
        if why is not None and len(self._refused) < _REFUSED_MAX:
            self._refused.append(f"A program that the cell was to start was refused: {why}")

    def answer(self, question: Question, text: str | None, why: str = "") -> None:
        """Answer what a cell asked; None is no answer, and why."""
        if self._link is not None:
            self._link.tell(protocol.INPUT_REQUEST, **question.answered(text, why))

    def take_refused(self) -> list[str]:
        """What was refused to user code since the last call, in sentences."""
        refused, self._refused = self._refused, []
        return refused
