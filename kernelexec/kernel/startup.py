"""How a kernel comes to serve this process: it is started, or it is taken over from an owner that died."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.abc import TaskGroup

from kernelexec.config import Config
from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.events import InContainer
from kernelexec.kernel import lease
from kernelexec.kernel.client import Link
from kernelexec.kernel.death import Death
from kernelexec.kernel.death_race import until_death
from kernelexec.kernel.shutdown import Ending
from kernelexec.kernel.startup_children import Programs
from kernelexec.kernel.usage import Usage
from kernelexec.kernel.variable_names import Names
from kernelexec.kernel.wire.connect import Dialing
from kernelexec.kernel.wire.masked_session import MaskedWire
from kernelexec.launcher import protocol
from kernelexec.policy import CommandRules
from kernelexec.provisioning import (
    Connection,
    Handover,
    KernelProvisionerBase,
    KernelSpec,
    Place,
    Transport,
    create_provisioner,
)
from kernelexec.provisioning.launch.kernelspec import KernelNotHeard, complaint, start_failure
from kernelexec.provisioning.launch.secret_pipe import handed
from kernelexec.secrets import SecretStore

#: How much text of the newest cell the launcher keeps for a new owner, in ``stream_bytes``: those of stdout and stderr.
_TAPE_BUDGETS = 2

logger = logging.getLogger("kernelexec")


class Beginning(Ending):
    """The part of a kernel that ends when it serves. Whoever derives from it ends the kernel, and hears of its death."""

    about: dict[str, Any]
    container: InContainer | None
    died: asyncio.Event
    names: Names
    programs: Programs | None
    token: str
    transport: Transport
    usage: Usage
    _called: str
    _commands: CommandRules
    _config: Config
    _dialing: Dialing | None
    _identity: bytes
    _place: Place
    _secrets: SecretStore | None

    async def start(self, tasks: TaskGroup) -> None:
        """Start the process, wait until it says that it serves, and connect.

        Raises:
            KernelStartFailed: it did not come up in time or died; with the end of its stderr.
            InvalidConfig: a secret cannot be had; nothing was started.
        """
        installed = self._installed
        name = installed.name if installed else "kernelexec"

        async def begin() -> None:
            secrets = await self._secrets.read() if self._secrets is not None else {}
            self.transport = self._place.reach(installed)
            connection = self._furnished(name)
            with handed(self._runtime.path, secrets if installed else {}, self._place.user) as pipe:
                served = self._runtime.publish(connection, await self._launch(tasks, pipe))
                if self._says_ready or (self._installed is not None and not self._runtime.leased):
                    await self._or_death(self._await_ready)
            await self._connect(served)
            if secrets and not installed:
                await self._or_death(lambda: self._tell(secrets))
            if served.server_key is not None and self._link is not None:
                tasks.start_soon(lease.keep, self._link, self.died)
            self.usage.begin()
            await self._note()

        await self._within_budget(begin)

    async def _tell(self, secrets: Mapping[str, str]) -> None:
        """Have the launcher set variables, before any cell and where nobody else reads along."""
        content = {"cwd": self._place.cwd, "environment": dict(secrets)}
        assert self._link is not None
        said = await self._link.ask("control", protocol.ENTER_REQUEST, content, patience=self._config.budgets.start)
        if said is None or said.get("status") != "ok":
            raise KernelConnectionFailed("its launcher did not take the secrets")

    def _furnished(self, name: str) -> Connection:
        try:
            return self._runtime.create(self.transport, name, user=self._place.user)
        except OSError as exc:
            raise KernelStartFailed(f"The kernel's private directory {self._runtime.path} cannot be made: {exc}.") from exc

    async def take_over(self, tasks: TaskGroup, handover: Handover) -> None:
        """Become the owner of a kernel that outlived the one before. No other process may have its directory's root.

        Raises:
            KernelStartFailed: it is gone, or does not answer in time; then it is ended.
        """
        self.token, self.about = handover.token, dict(handover.about)
        connection = self._runtime.take_over()

        async def begin() -> None:
            if self._secrets is not None:
                await self._secrets.read()
            await self._attach(tasks, handover)
            if connection is None:
                raise KernelConnectionFailed("nobody reads the pipe of its owner")
            await self._connect(connection)
            self.usage.begin()
            await self._or_death(self._await_names)

        await self._within_budget(begin)

    async def _within_budget(self, begin: Callable[[], Awaitable[None]]) -> None:
        budget = self._config.budgets.start
        try:
            with anyio.fail_after(budget):
                await begin()
        except TimeoutError as exc:
            last = f" ({self._dialing.failure})" if self._dialing and self._dialing.failure else ""
            unheard = KernelNotHeard if self._says_ready and self._link is None else KernelStartFailed
            raise unheard(await self._give_up(f"{self._called} did not serve within {budget} s{last}.")) from exc
        except KernelConnectionFailed as exc:
            raise KernelStartFailed(await self._give_up(f"{self._called}'s sockets cannot be used: {exc}.")) from exc
        except BaseException:
            await self.stop(0.0)
            raise

    async def _give_up(self, why: str) -> str:
        message = why + await self._complaint()
        await self.stop(0.0)
        return message

    async def _launch(self, tasks: TaskGroup, secrets: str | None) -> Mapping[str, Any]:
        self._check_wanted()
        spec = self._place.spec(self._runtime, self.token, self._installed)
        begins = self._place.first()
        env = begins.environ | self._order(secrets, begins.later)
        provisioner = await self._provisioner_for(spec)
        self._check_wanted()
        kwargs = await provisioner.pre_launch(env=env, cwd=begins.cwd)
        with self._runtime.stderr_file.open("ab") as stderr:
            try:
                self._provisioner = provisioner
                kwargs |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": stderr}
                where: Mapping[str, Any] = await provisioner.launch_kernel(kwargs.pop("cmd"), **kwargs)
            except OSError as exc:
                if not provisioner.has_process:
                    self._set_death(Death("exited", 127))
                raise KernelStartFailed(start_failure(exc, spec.argv[0], self._place.cwd)) from exc
        await provisioner.post_launch()
        self.container = getattr(provisioner, "in_container", None)
        tasks.start_soon(self._watch, provisioner)
        return where

    def _check_wanted(self) -> None:
        if self._unwanted:
            raise KernelStartFailed("The kernel was stopped before it started.")

    async def _provisioner_for(self, spec: KernelSpec) -> KernelProvisionerBase:
        """The one that has a container for it, or a new one."""
        remains = self.take_remains()
        if remains is not None and remains.provisioner.fits(spec):
            found: KernelProvisionerBase = remains.provisioner
            self._provisioner = found
            return found
        if remains is not None:
            await remains.provisioner.cleanup()
        return create_provisioner(self.token, spec)

    def _order(self, secrets: str | None, later: Mapping[str, object]) -> dict[str, str]:
        """What the launcher is told."""
        limits, patience = self._config.limits.model_dump(exclude_none=True), self._patience
        return self._runtime.launch_environment(
            self.token,
            limits,
            lease_seconds=self._config.budgets.start + lease.SECONDS,
            patience=patience,
            tape_bytes=_TAPE_BUDGETS * self._config.output.stream_bytes if patience else 0,
            confinement=self._place.confinement(self._runtime),
            judged=self._commands.on,
            programs=self._config.programs.told,
            secrets=secrets,
            **later,
        )

    async def _attach(self, tasks: TaskGroup, handover: Handover) -> None:
        """Have a provisioner care for a process that another one started."""
        provisioner = create_provisioner(self.token, self._place.spec(self._runtime, self.token, None))
        async with AsyncExitStack() as unless_found:
            unless_found.push_async_callback(provisioner.cleanup)
            try:
                await provisioner.load_provisioner_info(dict(handover.provisioner))
            except (OSError, LookupError, ValueError, TypeError) as exc:
                raise KernelStartFailed(f"The kernel that waited for a new owner cannot be found: {exc!r}.") from exc
            if not provisioner.has_process:
                raise KernelStartFailed("The kernel that waited for a new owner has ended.")
            unless_found.pop_all()
        self._provisioner = provisioner
        self.container = getattr(provisioner, "in_container", None)
        tasks.start_soon(self._watch, provisioner)

    @property
    def _says_ready(self) -> bool:
        """Whether its launcher is ours and has pipes to its owner."""
        return self._installed is None and self.transport == "ipc"

    @property
    def _patience(self) -> float:
        """How long it waits for a new owner when its own has died, in seconds; one that has a lease waits for none."""
        return self._place.patience if self._says_ready else 0.0

    async def _note(self) -> None:
        """Write down what a new owner would need."""
        if not self._patience or self._provisioner is None:
            return
        runtime = self._runtime
        handover = Handover(runtime.epoch, self.token, self.about, await self._provisioner.get_provisioner_info())
        try:
            handover.write(runtime.session)
        except (OSError, TypeError, ValueError):
            logger.exception("kernelexec.kernel_not_noted", extra={"kernel": str(runtime.path)})

    async def _connect(self, connection: Connection) -> None:
        pid = getattr(self._provisioner, "pid", None)
        serves = getattr(self._provisioner, "serves", None)
        dial = self._dialing = Dialing(connection, pid, said=self._says_ready, serves=serves)
        link = self._link = Link(connection.key, self._identity, self._config.output.message_bytes, self._learn)
        if self._secrets is not None:
            link.wire = MaskedWire(link.wire, self._secrets)
        await self._or_death(lambda: link.connect(dial))
        if not self._says_ready:
            await self._or_death(self._await_answer)  # its sockets, and a welcome on them, may come before it serves
        if self._installed is not None:
            self.programs = await Programs.of(pid or getattr(self._provisioner, "guard", None))

    async def _await_answer(self) -> None:
        if not await self.answers(self._config.budgets.start):
            raise KernelConnectionFailed("it does not answer")

    async def _await_ready(self) -> None:
        self.about = await self._runtime.wait_ready()

    async def _await_names(self) -> None:
        """Have the launcher prove that it is the one that was started, and tell the names of the user's variables."""
        content = {"msg_id": None}
        assert self._link is not None
        said = await self._link.ask("control", protocol.RESUME_REQUEST, content, patience=self._config.budgets.start)
        told = (said or {}).get(protocol.METADATA_KEY)
        if not isinstance(told, dict) or told.get("token") != self.token:
            raise KernelConnectionFailed("its launcher does not answer")
        self.names.learn_all(told)

    async def _or_death(self, wait: Callable[[], Awaitable[Any]]) -> None:
        failure = await until_death(self.died, wait)
        if self.death is not None:
            how = f"{self.death.cause}, exit code {self.death.exit_code}"
            raise KernelStartFailed(f"{self._called} ended while it started ({how}).{await self._complaint()}")
        if failure is not None:
            raise failure

    async def _complaint(self) -> str:
        return complaint((await self.stderr()).strip(), None if self._installed else self._place.python)

    @abstractmethod
    async def answers(self, patience: float) -> bool:
        """Whether the kernel answers on the channel that runs cells, within ``patience`` seconds."""

    @abstractmethod
    def _learn(self, metadata: dict[str, Any]) -> None: ...
