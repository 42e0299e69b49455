"""The provisioner of kernels in containers; its entry point is ``kernelexec-container``."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from traitlets import Bool, Dict, List, Unicode

from kernelexec.cancellation import await_to_end
from kernelexec.config import WORKSPACE_INSIDE, Container, Limits
from kernelexec.docker.client import ContainerStatus, Engine
from kernelexec.docker.create_options import Order
from kernelexec.docker.engine_reports import EventStream
from kernelexec.docker.labels import CLIENT, LAUNCHER_INSIDE, RUNTIME, RUNTIME_INSIDE, container_name
from kernelexec.docker.running_container import ContainerCommand
from kernelexec.errors import ContainerGone, EngineFailed, EngineUnavailable, KernelConnectionFailed, KernelStartFailed
from kernelexec.events import KernelContainer
from kernelexec.launcher import protocol
from kernelexec.provisioning.container.container_state import KILLED, STOPPED, ContainerState, OomDetector, run_in_thread
from kernelexec.provisioning.container.containers import create_container, remove_container, remove_leftovers, retry_removals
from kernelexec.provisioning.container.relay import KernelRelay
from kernelexec.provisioning.container.reuse import ContainerReuse, InitConnection
from kernelexec.provisioning.jupyter import ManagedKernelDirectory, reraise_for_server
from kernelexec.provisioning.launch import GUARD
from kernelexec.provisioning.provisioner import KernelexecProvisioner, RunningUserCommand, UserCommand
from kernelexec.provisioning.runtime.processes import find_children, is_descendant, read_live_status
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket, list_checkpoints
from kernelexec.results import Stats

#: The container's init exits with 128 + n for a kernel that signal n ended; other codes above 128 are the kernel's own.
_SIGNALLED = {128 + number: -number for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 31)}
#: Options that a container keeps for its life, even under a new owner with other settings.
_FIXED_OPTIONS = ("network", "layout")
logger = logging.getLogger("kernelexec")


class ContainerKernelProvisioner(KernelexecProvisioner):
    """A provisioner that creates, watches, signals and removes a container for one kernel after another."""

    isolation = "container"

    container = Dict(help="Options of the container: see kernelexec.Container.").tag(config=True)
    limits = Dict(help="Resource limits of its processes: see kernelexec.Limits.").tag(config=True)
    mounts: Any = List(help="Source, target and whether it is read-only, of each mounted directory.").tag(config=True)
    labels = Dict(help="Labels of the container.").tag(config=True)
    name = Unicode(help="Name of the container.").tag(config=True)
    share_home = Bool(help="Whether a notebook in the home directory may see all of that directory.").tag(config=True)
    init_socket = Unicode(help="Socket to which the container's init connects; if empty, the first process is the kernel.").tag(
        config=True
    )
    relay = Unicode(help="Directory of the sockets of a relay, which the kernel has for itself; empty if it sees ours.").tag(
        config=True
    )

    _reuse: ContainerReuse
    _origin: ContainerKernelProvisioner | None = None
    """The container's provisioner, if this kernel is a branch."""
    _checkpoints: str | None = None
    """The directory with the sockets of checkpoints, if the kernel makes any."""
    _relay: KernelRelay | None = None
    _is_left = False
    """Whether only branches still use the container."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traits
        super().__init__(**kwargs)
        self._stack = ExitStack()
        self._wait_lock = asyncio.Lock()
        self.mark = secrets.token_hex(16)
        self._state = ContainerState()
        self._oom = OomDetector(self._state)
        self._reuse = ContainerReuse(self._state, self._oom, InitConnection())
        self._manager_directory = None if self.parent is None else ManagedKernelDirectory(self.parent)

    @property
    def has_process(self) -> bool:
        """Whether the container and the kernel exist, as of the last report."""
        return bool(self._state.id) and self._state.status is None

    @property
    def container_info(self) -> KernelContainer:
        """Description of the container, with the caller's own mounts."""
        ours = (LAUNCHER_INSIDE, RUNTIME_INSIDE, self.labels.get(RUNTIME))
        shared = tuple((source, target, only) for source, target, only in self.mounts if target not in ours)
        network, sudo = str(self.container.get("network", "none")), bool(self.container.get("sudo"))
        return KernelContainer(self.name, self._state.id[:12], self._state.image, network, shared, sudo)

    @property
    def guard_pid(self) -> int | None:
        """Process id on this machine of the guard, a child of the first process; None if not visible from here."""
        return next(iter(find_children(self._state.pid)), None) if read_live_status(self._state.pid) else None

    def accepts_peer(self, peer: int, *, guarded: bool) -> bool:  # noqa: ARG002 - of the interface
        """Accept descendants of the container's first process, or this process as the server of a relay's sockets.

        If this process cannot see the container's processes, because it runs in a container itself, the peer's id is 0.
        """
        if self.relay:
            return peer == os.getpid()
        return is_descendant(peer, self._state.pid) if read_live_status(self._state.pid) else peer == 0

    @property
    def is_oom_killed(self) -> bool:
        """Whether the kernel was killed for want of memory."""
        return self._oom.is_oom_killed

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory limit of the whole container in bytes."""
        return self._state.memory_bytes

    def on_memory_kills(self, kills: int) -> None:
        """Note kills that the living kernel has counted."""
        self._oom.on_memory_kills(kills)

    async def stats(self) -> Stats:
        """Return the resource usage of the container."""
        return await self._state.stats()

    async def change_limits(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running container: see ``ContainerState.change_limits``."""
        await self._state.change_limits(memory_bytes, cpus)

    @property
    def can_go_back(self) -> bool:
        """Whether this process has a connection to the container's init, which can end a kernel and spare checkpoints."""
        return self._reuse.init.is_connected

    @property
    def is_reusable(self) -> bool:
        """Whether the container's init can fork the next kernel."""
        return self._reuse.is_possible

    def can_reuse(self, spec: KernelSpec) -> bool:
        """Return whether the container fits the kernelspec: same options, limits and mounted directories."""
        config = spec.metadata["kernel_provisioner"]["config"]
        is_same = all(getattr(self, name) == config.get(name) for name in ("container", "limits", "init_socket"))
        is_unchanged = not self._state.are_limits_changed and self._reuse.has_same_mounts(self.mounts)
        return is_same and self.is_reusable and is_unchanged

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's signature
        """Return the arguments of ``launch_kernel``."""
        if self._manager_directory is None:
            return await super().pre_launch(cmd=list(self.kernel_spec.argv), **kwargs)
        container = {**self.container, "share_home": True} if self.share_home else self.container
        options = {"container": container, "limits": self.limits}
        with reraise_for_server():
            launch, settings = await self._manager_directory.prepare(
                self.kernel_spec, self.kernel_id, kwargs, isolation="container", options=options
            )
        self.mounts, self.name = settings["mounts"], settings["name"]
        self.labels = settings["labels"] | {CLIENT: "jupyter"}
        self.connection_info = self._manager_directory.connection_info
        return launch

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Create the container and start the kernel inside.

        A container without remains of the previous kernel is used again.

        Raises:
            KernelStartFailed: there is no image, or the engine refuses or does not answer.
        """
        if self._manager_directory is None:
            return await self._launch(cmd, kwargs)
        try:
            with reraise_for_server():
                await self._launch(cmd, kwargs)
                await self._manager_directory.wait_ready(self.wait, self.read_log)
        except BaseException:
            await await_to_end(self.cleanup())  # the manager does not
            raise
        return self.connection_info

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        options = json.loads(kwargs["env"].get(protocol.LAUNCH_OPTIONS_VARIABLE, "{}"))
        self._checkpoints = options["checkpoints"]["directory"] if options.get("checkpoints") else None
        if self.checkpoint is not None:
            await self._fork_checkpoint(self.checkpoint, options)
            return self.connection_info
        # The init's command is python, launcher, CONTAINER_INIT_FLAG, socket, then the kernel's arguments (``build_spec``).
        if await self._reuse.fork(cmd[4:], kwargs):
            return self.connection_info
        await self._remove()
        for part in (self._state, self._oom, self._reuse):
            part.reset_container()
        try:
            await self._create(cmd, kwargs)
        except EngineFailed as exc:
            if self.container.get("gpus") is not None and "gpu" in str(exc).casefold():
                message = f"gpus={self.container['gpus']!r}: the engine's machine has no runtime for GPUs ({exc})."
                raise KernelStartFailed(f"{message} Install NVIDIA's Container Toolkit there, or leave gpus out.") from exc
            raise KernelStartFailed(str(exc)) from exc
        return self.connection_info

    async def _fork_checkpoint(self, checkpoint: CheckpointSocket, options: dict[str, Any]) -> None:
        if not self._reuse.expect_kernel():
            raise KernelStartFailed("The checkpoint cannot be restored: the container has ended.")
        if not await self._reuse.adopt(await checkpoint.fork(options)):
            raise KernelStartFailed("The checkpoint cannot be restored: its process has ended.")

    async def _create(self, cmd: list[str], kwargs: dict[str, Any]) -> None:
        state = self._state
        events = await state.connect()
        await run_in_thread(retry_removals, events.engine)
        if self._manager_directory is not None:
            await run_in_thread(remove_leftovers, events.engine)
        order = self._create_options(cmd, kwargs)
        # A thread cannot be cancelled: without the wait, nothing here would know the id of a container that it still creates.
        await await_to_end(run_in_thread(self._create_stopped, order, events))
        # Both before the start: no event of a short life is missed, and the init finds its socket, which it tries only once.
        state.changed = self._stack.enter_context(events.of(state.id))
        self._reuse.listen(self.init_socket, order.options, self.mounts)
        await run_in_thread(events.engine.start, state.id)
        self._apply_all(await run_in_thread(events.engine.inspect_container, state.id))
        await self._open_relay()
        # Accepted only now: a peer is checked by the container's process id, which ``_apply_all`` has read.
        self._reuse.init.accept(lambda peer: self.accepts_peer(peer, guarded=True))

    async def _open_relay(self) -> None:
        """Serve the kernel's sockets on this machine if the kernel has a relay."""
        if not self.relay or self._state.events is None:
            return
        argv = (self.kernel_spec.argv[0], *GUARD, LAUNCHER_INSIDE, protocol.RELAY_FLAG, self.relay)
        user = "{}:{}".format(*Container.model_validate(self.container).ids)
        self._relay = KernelRelay(self._state.events.engine, self._state.id, argv, user=user, directory=Path(self.relay))
        await self._relay.open()

    def _create_stopped(self, order: Order, events: EventStream) -> None:
        """Create the container without a start; remove the container at once if ``cleanup`` came first."""
        container = self._state.id = create_container(events.engine, order, self.name)
        if self._state.events is not events:
            with Engine.acquire() as engine:  # the connection of the events is closed
                remove_container(engine, container)
            raise KernelStartFailed(STOPPED)

    def _create_options(self, cmd: list[str], kwargs: dict[str, Any]) -> Order:
        options = Container.model_validate(self.container)
        self._state.take_limits(options)
        return Order(
            image="",
            command=tuple(cmd),
            environment=kwargs["env"] | ({protocol.KERNEL_MARK_VARIABLE: self.mark} if self.init_socket else {}),
            user="{}:{}".format(*options.ids),
            cwd=kwargs["cwd"],
            mounts=tuple(self.mounts),
            labels=self.labels,
            options=options,
            limits=Limits.model_validate(self.limits),
            private=self.relay,
            has_init=bool(self.init_socket),
        )

    async def poll(self) -> int | None:
        """Return the exit status, or None while the kernel lives."""
        if self.has_process:
            await self._inspect()
        return self._state.status if self._state.id else 0

    async def wait(self) -> int | None:
        """Wait until the container has ended or is gone, and return the exit status; concurrent calls are safe.

        While the engine does not answer, containers count as living; they are inspected when it is back.
        """
        state = self._state
        async with self._wait_lock:
            while self.has_process:
                # Cleared before the look: an event during the look ends the wait at once, and a second look follows.
                state.changed.clear()
                await self._inspect()
                if state.status is None:
                    await state.changed.wait()
            await self._oom.wait_reason()
            if not (self._checkpoints and list_checkpoints(self._checkpoints)):  # else cleanup sweeps: some of them may stay
                await self._reuse.sweep()
        return state.status

    async def _inspect(self) -> None:
        assert self._state.events is not None
        try:
            inspected = await run_in_thread(self._state.events.engine.inspect_container, self._state.id)
        except ContainerGone:
            self._state.end(KILLED)
        except EngineFailed:
            self.is_unreachable = True
        else:
            self.is_unreachable = False
            self._apply_status(inspected)

    def _apply_status(self, inspected: ContainerStatus) -> None:
        if not inspected.running and self._state.status is None:
            self._oom.on_flag(flagged=inspected.out_of_memory)
            self._state.end(_SIGNALLED.get(inspected.exit_code, inspected.exit_code))

    def _apply_all(self, inspected: ContainerStatus) -> None:
        self._state.pid, self._state.image = inspected.pid, inspected.image
        self._apply_status(inspected)

    async def start_command(self, command: UserCommand) -> RunningUserCommand:
        """Start a command as any user of the container."""
        events, python, mark = self._state.events, self.kernel_spec.argv[0], secrets.token_hex(16)
        if events is None:
            raise ContainerGone(STOPPED)
        launcher = (python, *GUARD, LAUNCHER_INSIDE)
        started: RunningUserCommand = await run_in_thread(
            partial(
                ContainerCommand,
                events.engine,
                self._state.id,
                (*launcher, protocol.USER_COMMAND_FLAG, ",".join(command.env), command.command),
                user=command.user,
                environment={**command.env, protocol.COMMAND_MARK_VARIABLE: mark},
                cwd=command.cwd,
                end_argv=(*launcher, protocol.END_COMMAND_FLAG, mark),
            )
        )
        return started

    async def rename(self, session: str, workspace: str) -> None:
        """Give an idle container to a session with a renamed workspace; if the engine fails, the container's name stays."""
        self.mounts = [(workspace if inside == WORKSPACE_INSIDE else path, inside, only) for path, inside, only in self.mounts]
        name = container_name(session, self.kernel_id, self.container.get("instance"))
        if self._state.events is not None:
            with suppress(EngineFailed):
                await run_in_thread(self._state.events.engine.rename, self._state.id, name)
                self.name = name

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel through the container's init; SIGKILL ends everything in the container, or all of a branch.

        If code in the container has cut the connection to the init, a branch ends with the whole container.
        """
        state = self._state
        # SIGKILL goes to the engine: it must end everything, whatever state the init is in.
        if signum not in (0, signal.SIGKILL) and self._reuse.signal(signum):
            return
        if signum == signal.SIGKILL and self._reuse.has_branches:  # they outlive it, unless the init cannot end it alone
            await self._reuse.sweep(self._spared_pids())
            if not self.has_process:
                return
        if signum and self.has_process and state.events is not None:
            signum = signum if self._origin is None else signal.SIGKILL  # the engine signals the container's own kernel
            state.is_kill_requested |= signum == signal.SIGKILL
            await run_in_thread(state.events.engine.signal, state.id, int(signum))

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill everything in the container; keep a reusable container for a ``restart``.

        If the engine does not answer, the container is left, and removed when the engine is back.
        """
        if restart and await self._reuse.sweep(self._spared_pids()):
            return
        try:
            await self.send_signal(signal.SIGKILL)
        except EngineUnavailable:
            logger.warning("kernelexec.container_not_removed", extra={"container": self._state.id})
            self._state.end(KILLED)  # else ``wait``, and with it the end of the session, would last as long as the outage

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - jupyter_client's signature
        """Ask the kernel to end."""
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Remove the container; keep a reusable container for a ``restart``."""
        try:
            if not (restart and await self._reuse.sweep(self._spared_pids())):
                await self._remove()
        finally:
            if self._manager_directory is not None:
                await self._manager_directory.release(restart=restart)

    def _spared_pids(self) -> set[int]:
        """Return the process ids of checkpoints inside the container."""
        return {checkpoint.own_pid for checkpoint in self.spared}

    async def _remove(self) -> None:
        """Remove the container, or leave the removal to the last branch."""
        state = self._state
        if self._reuse.has_branches and state.events is not None:
            self._is_left = True
            await self._reuse.sweep()
            state.end(KILLED if state.status is None else state.status)
            if self._reuse.has_branches:  # asked again: the last branch may have left during the sweep
                return
        events, state.events = state.events, None
        self._reuse.init.close()
        if events is None:
            return
        try:
            if self._relay is not None:
                await self._relay.close()
            if state.id:
                await run_in_thread(remove_container, events.engine, state.id)
                state.end(KILLED if state.status is None else state.status)
        finally:
            await run_in_thread(self._stack.close)
            await run_in_thread(events.release)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return the container's id and settings, for a takeover of the kernel by another process."""
        options = {name: self.container[name] for name in _FIXED_OPTIONS if name in self.container}
        settings = {"name": self.name, "mounts": self.mounts, "options": options}
        info = await super().get_provisioner_info()
        return {**info, "container": self._state.id, "made": settings, "relayed": bool(self.relay)}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Manage a container created by another process with the settings in ``provisioner_info``.

        Raises:
            OSError: the container is gone, or the engine does not answer.
        """
        await super().load_provisioner_info(provisioner_info)
        if (settings := provisioner_info.get("made")) is not None:
            self.name, self.mounts = settings["name"], settings["mounts"]
            self.container = self.container | settings["options"]
        try:
            events = await self._state.connect()
            self._state.id = container = str(provisioner_info["container"])
            self._state.changed = self._stack.enter_context(events.of(container))
            self._apply_all(await run_in_thread(events.engine.inspect_container, container))
            await self._open_relay()
        except EngineFailed as exc:
            raise OSError(str(exc)) from exc

    def make_branch(self, mark: str) -> ContainerBranchProvisioner:
        """Return the provisioner of a branch with that mark, in the same container.

        Raises:
            KernelConnectionFailed: there is no connection to the init, such as after a start by another process.
        """
        if not self._reuse.init.is_connected:
            raise KernelConnectionFailed("its container was started by another process")
        options = self.trait_values(config=True)
        branch = ContainerBranchProvisioner(kernel_id=mark, kernel_spec=self.kernel_spec, parent=None, **options)
        branch.join(self._origin or self, self._reuse.init, self._state.for_branch(), mark)
        return branch

    async def release(self) -> None:
        """Remove a container left to branches, once the last branch has ended."""
        if self._is_left and not self._reuse.has_branches:
            await self._remove()

    async def read_log(self) -> str:
        """Return the end of the output of the container's first process."""
        state = self._state
        return await run_in_thread(state.events.engine.logs, state.id) if state.events is not None and state.id else ""


class ContainerBranchProvisioner(ContainerKernelProvisioner):
    """A provisioner of a branch: a kernel beside another in the same container, forked from the other's memory."""

    def join(self, origin: ContainerKernelProvisioner, init: InitConnection, state: ContainerState, mark: str) -> None:
        """Use the container of another provisioner, ``origin``, until ``cleanup``."""
        self.mark, self._origin = mark, origin
        self._state, self._oom = state, OomDetector(state)
        self._reuse = ContainerReuse(state, self._oom, init, mark)
        assert state.events is not None
        state.changed = self._stack.enter_context(state.events.of(state.id))

    async def _remove(self) -> None:
        """End all processes of this branch, and leave the container."""
        state, origin = self._state, self._origin
        events, state.events = state.events, None
        if events is None or origin is None:
            return
        await self._reuse.sweep()
        self._reuse.leave()
        state.end(KILLED if state.status is None else state.status)
        await run_in_thread(self._stack.close)
        await origin.release()
