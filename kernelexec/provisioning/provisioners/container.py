"""A kernel in a container of its own. jupyter_client calls it; it is found by the entry point ``kernelexec-container``."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any

import anyio
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from traitlets import Bool, Dict, List, Unicode

from kernelexec.config import WORKSPACE_INSIDE, Container, Limits
from kernelexec.docker import networks
from kernelexec.docker.client import Seen
from kernelexec.docker.create_options import LOOPBACK, Order, network_of
from kernelexec.docker.labels import CLIENT, LAUNCHER_INSIDE, RUNTIME, RUNTIME_INSIDE, container_name
from kernelexec.errors import ContainerGone, EngineAway, EngineFailed, KernelStartFailed
from kernelexec.events import InContainer
from kernelexec.provisioning.container.create import remove, remove_left
from kernelexec.provisioning.container.orphans import remove_leftovers
from kernelexec.provisioning.container.reuse import Succession
from kernelexec.provisioning.container.stats import KILLED, in_thread
from kernelexec.provisioning.jupyter.manager_bridge import Guest, told
from kernelexec.provisioning.runtime.processes import children_of, descends, status_of

#: The first process says 128 + n of a kernel that ended of signal n; other codes above 128 are the kernel's own.
_SIGNALLED = {128 + number: -number for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 31)}
#: Options that a container keeps for its life, whatever who takes it over is configured with.
_AS_MADE = ("network", "layout")
logger = logging.getLogger("kernelexec")


class Provisioner(Succession, KernelProvisionerBase):
    """One container for one kernel process: made, watched, signalled and removed through the engine."""

    isolation = "container"

    container = Dict(help="Options of the container: see kernelexec.Container.").tag(config=True)
    limits = Dict(help="Resource limits of its processes: see kernelexec.Limits.").tag(config=True)
    mounts: Any = List(help="Source, target and whether it can only be read, of each directory it sees.").tag(config=True)
    labels = Dict(help="Labels of the container.").tag(config=True)
    name = Unicode(help="What the container is called.").tag(config=True)
    share_home = Bool(help="Whether a notebook in the user's own directory may see all of that.").tag(config=True)
    warden = Unicode(
        help="Where its first process connects to, and has the kernels forked; it is the kernel if that is empty."
    ).tag(config=True)
    ports: Any = Dict(help="Names of ports, and the ports of the container that are published on 127.0.0.1.").tag(config=True)

    _image = ""
    _published: Mapping[int, int] = MappingProxyType({})
    """Ports of the container, and where they are reached."""
    unseen = False
    """Whether the engine did not answer when it was asked last."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traits
        super().__init__(**kwargs)
        self._stack = ExitStack()
        self._looking = asyncio.Lock()
        self._guest = None if self.parent is None else Guest(self.parent)

    @property
    def has_process(self) -> bool:
        """Whether there is a container, as far as is known."""
        return bool(self._id) and self._status is None

    @property
    def in_container(self) -> InContainer:
        """What people are told of the container; of its mounts, those that are theirs."""
        ours = (LAUNCHER_INSIDE, RUNTIME_INSIDE, self.labels.get(RUNTIME))
        shared = tuple((source, target, only) for source, target, only in self.mounts if target not in ours)
        network = network_of(str(self.container.get("network", "none")), self.ports)
        published, sudo = tuple(sorted(self._published.values())), bool(self.container.get("sudo"))
        return InContainer(self.name, self._id[:12], self._image, network, shared, published, sudo)

    @property
    def guard(self) -> int | None:
        """The parent of a kernel that is not ours, as this machine counts; None where it cannot be seen."""
        return next(iter(children_of(self._pid)), None) if status_of(self._pid) else None

    def serves(self, pid: int) -> bool:
        """Whether a process, by the id that a unix socket tells, is one of the container's.

        Where this process cannot see the container's processes (it is in a container itself) a socket tells no id.
        """
        return descends(pid, self._pid) if status_of(self._pid) else pid == 0

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's signature
        """Called before ``launch_kernel``; what it returns is given there."""
        if self._guest is None:
            return await super().pre_launch(cmd=list(self.kernel_spec.argv), **kwargs)
        container = {**self.container, "share_home": True} if self.share_home else self.container
        options = {"container": container, "limits": self.limits}
        with told():
            launch, settings = await self._guest.receive(
                self.kernel_spec, self.kernel_id, kwargs, isolation="container", options=options
            )
        self.mounts, self.name = settings["mounts"], settings["name"]
        self.labels = settings["labels"] | {CLIENT: "jupyter"}
        self.connection_info = self._guest.connection_info
        return launch

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Make the container and start the kernel in it. Called by the kernel driver once, by a KernelManager after each end.

        What it returns says where published ports are reached.

        Raises:
            KernelStartFailed: there is no image, the engine refuses, or it does not answer.
        """
        if self._guest is None:
            return await self._launch(cmd, kwargs)
        try:
            with told():
                await self._launch(cmd, kwargs)
                await self._guest.welcome(self.wait, self.complaint)
        except BaseException:
            with anyio.CancelScope(shield=True):  # nobody else would
                await self.cleanup()
            raise
        return self.connection_info

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        if await self._fork(cmd[4:], kwargs):
            return self.connection_info
        await self._remove()
        self._forget()
        try:
            news = await self._hear()
            await in_thread(remove_left, news.engine)
            if self._guest is not None:
                await in_thread(remove_leftovers, news.engine)
            order = self._order(cmd, kwargs)
            await self._make(order, news)
            self._look = self._stack.enter_context(news.of(self._id))
            self._listen()
            await in_thread(networks.start, news.engine, self._id, order)
            self._take(await in_thread(news.engine.see, self._id))
            if self._warden is not None:
                self._warden.welcome(self.serves)
        except EngineFailed as exc:
            raise KernelStartFailed(str(exc)) from exc
        if not self.ports:
            return self.connection_info
        if self._status is not None:  # then it has no ports any more, which is not why it is not reached
            said = (await self.complaint()).strip()
            raise KernelStartFailed(f"The kernel ended while it started (exit code {self._status}). {said}".rstrip())
        return {"ip": LOOPBACK, **{name: self._published.get(port) for name, port in self.ports.items()}}

    def _order(self, cmd: list[str], kwargs: dict[str, Any]) -> Order:
        options = Container.model_validate(self.container)
        self._memory_bytes = options.memory_bytes
        self._swap_bytes = (options.memory_swap_bytes or 0) - (options.memory_bytes or 0) if options.memory_swap_bytes else 0
        return Order(
            image="",
            command=tuple(cmd),
            environment=kwargs["env"],
            user="{}:{}".format(*options.ids),
            cwd=kwargs["cwd"],
            mounts=tuple(self.mounts),
            labels=self.labels,
            options=options,
            limits=Limits.model_validate(self.limits),
            ports=tuple(self.ports.values()),
            has_init=bool(self.warden),
        )

    async def poll(self) -> int | None:
        """The exit status, or None while the kernel lives."""
        if self._status is None and self._id:
            await self._see()
        return self._status if self._id else 0

    async def wait(self) -> int | None:
        """The exit status once the container has ended or is gone; safe to call more than once.

        An engine that is away says nothing of its containers: they are looked at when it is back.
        """
        async with self._looking:
            while self._status is None and self._id:
                self._look.clear()
                await self._see()
                if self._status is None:
                    await self._look.wait()
            await self._learn_why()
            await self._sweep()
        return self._status

    async def _see(self) -> None:
        assert self._news is not None
        try:
            seen = await in_thread(self._news.engine.see, self._id)
        except ContainerGone:
            self._end(KILLED)
        except EngineFailed:
            self.unseen = True
        else:
            self.unseen = False
            self._read(seen)

    def _read(self, seen: Seen) -> None:
        if not seen.running and self._status is None:
            self._flagged = seen.out_of_memory and not self._was_flagged
            self._end(_SIGNALLED.get(seen.exit_code, seen.exit_code))

    async def rename(self, session: str, workspace: str) -> None:
        """Give an idle container to a session, whose workspace it has by now. Its name stays as it is if the engine is away."""
        self.mounts = [(workspace if inside == WORKSPACE_INSIDE else path, inside, only) for path, inside, only in self.mounts]
        name = container_name(session, self.kernel_id, self.container.get("instance"))
        if self._news is not None:
            with suppress(EngineFailed):
                await in_thread(self._news.engine.rename, self._id, name)
                self.name = name

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel: the first process of its container hands on what it gets, but for SIGKILL, which ends all."""
        if signum in (0, signal.SIGKILL) or not self._signal(signum):
            await self._signal_by_engine(signum)

    async def _signal_by_engine(self, signum: int) -> None:
        if signum and self.has_process and self._news is not None:
            self._unwanted |= signum == signal.SIGKILL
            await in_thread(self._news.engine.signal, self._id, int(signum))

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill everything in the container, which goes on for a ``restart`` if it can.

        Where the engine is away the container is left, and removed when it is back.
        """
        if restart and await self._sweep():
            return
        try:
            await self.send_signal(signal.SIGKILL)
        except EngineAway:
            logger.warning("kernelexec.container_left", extra={"container": self._id})
            self._end(KILLED)

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - jupyter_client's signature
        """Ask the kernel to end."""
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Remove the container, unless it is good for a ``restart``. Called when the kernel has ended, or did not come up."""
        try:
            if not (restart and await self._sweep()):
                await self._remove()
        finally:
            if self._guest is not None:
                await self._guest.leave(restart=restart)

    async def _remove(self) -> None:
        news, self._news = self._news, None
        self._leave()
        if news is None:
            return
        try:
            if self._id:
                await in_thread(remove, news.engine, self._id)
                if self.ports:
                    await in_thread(networks.remove_unused, news.engine)
                self._end(KILLED if self._status is None else self._status)
        finally:
            await in_thread(self._stack.close)
            await in_thread(news.let_go)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What another process needs to take the kernel over."""
        options = {name: self.container[name] for name in _AS_MADE if name in self.container}
        made = {"name": self.name, "mounts": self.mounts, "options": options}
        return {**await super().get_provisioner_info(), "container": self._id, "made": made}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Care for a container that another process made, with settings of its own: what is told of it is what it has.

        Raises:
            OSError: it is gone, or nobody can say.
        """
        await super().load_provisioner_info(provisioner_info)
        if (made := provisioner_info.get("made")) is not None:
            self.name, self.mounts, self.container = made["name"], made["mounts"], self.container | made["options"]
        try:
            await self._hold(str(provisioner_info["container"]))
        except EngineFailed as exc:
            raise OSError(str(exc)) from exc

    async def _hold(self, container: str) -> None:
        news = await self._hear()
        self._id = container
        self._look = self._stack.enter_context(news.of(container))
        self._take(await in_thread(news.engine.see, container))

    def _take(self, seen: Seen) -> None:
        self._pid, self._image, self._published = seen.pid, seen.image, seen.ports
        self._read(seen)

    async def complaint(self) -> str:
        """The end of what the kernel's process wrote."""
        return await in_thread(self._news.engine.logs, self._id) if self._news is not None and self._id else ""
