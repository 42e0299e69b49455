"""One kernel process, from its start to its last descendant's end.

It assumes a hostile kernel: nothing here waits without a bound, grows without a bound, or believes what it can check.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from kernelexec.collector import Collector, Displays
from kernelexec.config import Config
from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.kernel.death import Death
from kernelexec.kernel.dialing import Dialing
from kernelexec.kernel.execution import Execution
from kernelexec.kernel.link import Link
from kernelexec.kernel.names import Names
from kernelexec.kernel.programs import Programs
from kernelexec.kernel.racing import until_death
from kernelexec.provisioning import (
    Connection,
    InstalledSpec,
    KernelProvisionerBase,
    LocalPlace,
    Place,
    RuntimeDirectory,
    create_provisioner,
)
from kernelexec.provisioning.spec import complaint, start_failure
from kernelexec.results import Rung

_STDERR_BYTES = 4096
_STACKS_BYTES = 64 * 1024
_WORDS_BYTES = 2 * 1024 * 1024
#: The launcher writes every thread's stack on this signal, also while a C loop holds the interpreter's lock.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 3


class Kernel:
    """One kernel process. ``start`` and ``stop`` bracket its life; in between, ``submit`` sends it cells."""

    def __init__(
        self,
        config: Config,
        runtime: RuntimeDirectory,
        *,
        cwd: str,
        identity: bytes,
        installed: InstalledSpec | None = None,
        place: Place | None = None,
    ) -> None:
        self.names = Names()
        self.death: Death | None = None
        self.died = asyncio.Event()
        self.displays = Displays()
        self.token = secrets.token_hex(8)
        self.about: dict[str, Any] = {}
        self.programs: Programs | None = None
        self.on_death: Callable[[Death], None] | None = None
        self._config = config
        self._runtime = runtime
        self._place = place or LocalPlace(config, cwd)
        self._identity = identity
        self._provisioner: KernelProvisionerBase | None = None
        self._link: Link | None = None
        self._unwanted = False
        self._installed = installed
        self._called = f"The kernel {installed.name!r}" if installed else "The kernel"
        self._dialing: Dialing | None = None

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The steps that can end a cell of it and keep the state, gentlest first."""
        if self._installed is None:
            return "interrupt", "signal", "cancel", "command"
        return ("interrupt",) if self._installed.interrupt_mode == "message" else ("signal",)

    @property
    def alive(self) -> bool:
        """Whether the process lives and still talks to us."""
        return self._link is not None and self.death is None and not self._link.hung_up

    @property
    def unseen(self) -> bool:
        """Whether nobody can say now what became of the process."""
        return getattr(self._provisioner, "unseen", False) is True

    @property
    def connection_file(self) -> Path:
        """By which any Jupyter client can attach while the process lives."""
        return self._runtime.connection_file

    async def start(self, tasks: TaskGroup) -> None:
        """Start the process, wait until it says that it serves, and connect.

        Raises:
            KernelStartFailed: it did not come up in time or died; with the end of its stderr.
        """
        installed = self._installed
        connection = self._runtime.create(installed.transport, installed.name) if installed else self._runtime.create()
        budget = self._config.budgets.start
        try:
            with anyio.fail_after(budget):
                await self._launch(tasks)
                if installed is None:
                    await self._or_death(self._await_ready)
                await self._connect(connection)
        except TimeoutError as exc:
            last = f" ({self._dialing.failure})" if self._dialing and self._dialing.failure else ""
            raise KernelStartFailed(await self._give_up(f"{self._called} did not serve within {budget} s{last}.")) from exc
        except KernelConnectionFailed as exc:
            raise KernelStartFailed(await self._give_up(f"{self._called}'s sockets cannot be used: {exc}.")) from exc
        except BaseException:
            await self.kill()
            raise

    async def _give_up(self, why: str) -> str:
        message = why + await self._complaint()
        await self.kill()
        return message

    async def _launch(self, tasks: TaskGroup) -> None:
        if self._unwanted:
            raise KernelStartFailed("The kernel was stopped before it started.")
        spec = self._place.spec(self._runtime, self.token, self._installed)
        limits = self._config.limits.model_dump(exclude_none=True)
        env = self._place.environment() | self._runtime.launch_environment(self.token, limits)
        provisioner = create_provisioner(self.token, spec)
        kwargs = await provisioner.pre_launch(env=env, cwd=self._place.cwd)
        with self._runtime.stderr_file.open("ab") as stderr:
            try:
                self._provisioner = provisioner
                silent = subprocess.DEVNULL
                await provisioner.launch_kernel(kwargs.pop("cmd"), stdin=silent, stdout=silent, stderr=stderr, **kwargs)
            except OSError as exc:
                if not provisioner.has_process:
                    self._set_death(Death("exited", 127))
                raise KernelStartFailed(start_failure(exc, spec.argv[0], self._place.cwd)) from exc
        await provisioner.post_launch()
        tasks.start_soon(self._watch, provisioner)

    async def _connect(self, connection: Connection) -> None:
        pid = getattr(self._provisioner, "pid", None)
        serves = getattr(self._provisioner, "serves", None)
        dial = self._dialing = Dialing(connection, pid, said=self._installed is None, serves=serves)
        link = self._link = Link(connection.key, self._identity, self._config.output.message_bytes, self._learn)
        await self._or_death(lambda: link.connect(dial))
        if self._installed is not None and pid is not None:
            await self._or_death(self._await_answer)  # its sockets, and a welcome on them, may come before it serves
            self.programs = await Programs.of(pid)

    async def _await_answer(self) -> None:
        if not await self.answers(self._config.budgets.start):
            raise KernelConnectionFailed("it does not answer")

    async def _await_ready(self) -> None:
        self.about = await self._runtime.wait_ready()

    async def _or_death(self, wait: Callable[[], Awaitable[Any]]) -> None:
        failure = await until_death(self.died, wait)
        if self.death is not None:
            how = f"{self.death.cause}, exit code {self.death.exit_code}"
            raise KernelStartFailed(f"{self._called} ended while it started ({how}).{await self._complaint()}")
        if failure is not None:
            raise failure

    async def _complaint(self) -> str:
        text = self._runtime.read("stderr", _STDERR_BYTES).decode("utf-8", "replace").strip()
        if (asked := getattr(self._provisioner, "complaint", None)) is not None:
            text = (await asked()).strip()
        return complaint(text, None if self._installed else self._place.python)

    def submit(
        self, code: str, collector: Collector, late: Collector, *, counted: bool = True, msg_id: str | None = None
    ) -> Execution:
        """Send a cell, under a ``msg_id`` of choice; what is not ``counted`` takes no execution count.

        Raises:
            KernelConnectionFailed: the kernel is gone; nothing was sent.
        """
        assert self._link is not None
        execution = self._link.submit(code, collector, late, counted=counted, msg_id=msg_id)
        execution.lingers = self._installed is not None
        return execution

    def take_late(self) -> list[Execution]:
        """Executions that have ended, and of which output came since the last call."""
        return self._link.take_late() if self._link is not None else []

    async def answers(self, patience: float) -> bool:
        """Whether the kernel answers on the channel that runs cells, within ``patience`` seconds."""
        return self.alive and self._link is not None and await self._link.answers(patience)

    async def ask(self, channel: str, msg_type: str, content: dict[str, Any], *, patience: float) -> dict[str, Any] | None:
        """See ``Link.ask``; None at once where the kernel does not live."""
        return await self._link.ask(channel, msg_type, content, patience=patience) if self.alive and self._link else None

    async def settle(self, execution: Execution, patience: float) -> bool:
        """Whether the kernel answers after a cell; see ``Link.settle``."""
        return self.alive and self._link is not None and await self._link.settle(execution, patience)

    async def exits(self, patience: float) -> bool:
        """Whether the kernel's process ends within ``patience`` seconds, as it said it would."""
        with anyio.move_on_after(patience):
            await self.died.wait()
        return self.death is not None

    async def request_interrupt(self, patience: float) -> bool:
        """Ask for an interrupt on the control channel; whether the kernel took notice within ``patience`` seconds."""
        if self._link is None:
            return False
        self._link.control("interrupt_request")
        with anyio.move_on_after(patience):
            await self._link.control_answered.wait()
        return self._link.control_answered.is_set()

    def request_cancel(self) -> None:
        """Ask the launcher to cancel a top-level await, whatever the cell made of the interrupt signal."""
        if self._link is not None:
            self._link.control("kernelexec_cancel_request")

    async def signal(self, signum: int) -> None:
        """Signal the kernel from outside (its process group for SIGINT)."""
        if self._provisioner is not None and self.death is None:
            with suppress(OSError):
                await self._provisioner.send_signal(signum)

    async def signal_children(self, signum: int) -> None:
        """Signal every descendant of the kernel, not the kernel itself; where they cannot be seen, it kills them when asked."""
        signal_children = getattr(self._provisioner, "signal_children", None)
        if signal_children is not None and self.death is None:
            await signal_children(signum)
        elif self._link is not None:
            self._link.control("kernelexec_kill_request")

    async def request_stacks(self) -> None:
        """Have every thread's stack written, if the launcher listens for it (else the signal would kill)."""
        if (self._runtime.path / "stacks").exists():
            await self.signal(STACKS_SIGNAL)

    def stacks(self) -> str:
        """What the launcher wrote of its threads' stacks so far."""
        return self._runtime.read("stacks", _STACKS_BYTES).decode("utf-8", "replace")

    async def kill(self) -> None:
        """Kill the process and all its descendants, and wait until it is gone."""
        self._unwanted = True
        with anyio.CancelScope(shield=True):
            provisioner = self._provisioner
            if provisioner is not None and self.death is None:
                await provisioner.kill()
                status = await provisioner.wait()
                if self._link is not None:
                    await self._link.drained()
                self._set_death(Death.of(status))
            if self._link is not None:
                self._link.close()
            if provisioner is not None:
                self._provisioner = None
                await provisioner.cleanup()
            self._runtime.remove()

    async def stop(self, patience: float) -> None:
        """End the kernel: politely for ``patience`` seconds, then by force. Nothing of it is left."""
        with anyio.CancelScope(shield=True):
            if self.alive and self._link is not None and patience:
                self._link.control("shutdown_request", restart=False)
                await self.exits(patience)
            await self.kill()

    async def _watch(self, provisioner: KernelProvisionerBase) -> None:
        status = await provisioner.wait()
        if self._link is not None:
            await self._link.drained()
        self._set_death(Death.of(status, out_of_memory=getattr(provisioner, "out_of_memory", False)))

    def _set_death(self, death: Death) -> None:
        if self.death is not None:
            return
        self.death = death
        self.died.set()
        if self._link is not None:
            self._link.hear_last_words(self._runtime.read("words", _WORDS_BYTES))
            self._link.finish("died")
        if self.on_death is not None:
            self.on_death(death)

    def _learn(self, metadata: dict[str, Any]) -> None:
        """Follow the user's names as the launcher says them."""
        said = metadata.get("kernelexec")
        if not isinstance(said, dict) or said.get("token") != self.token:
            return
        self.names.learn(said)
