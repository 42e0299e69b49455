"""Provisioners of kernels on this machine: child processes, forked processes, and processes behind another program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Instance, List, Unicode

from kernelexec.cancellation import await_to_end
from kernelexec.errors import KernelStartFailed
from kernelexec.launcher.processes.proc import give_oom_score, has_variable
from kernelexec.launcher.protocol import KERNEL_MARK_VARIABLE, LAUNCH_OPTIONS_VARIABLE
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.fork_servers import ForkServer, ForkServerUnavailable
from kernelexec.provisioning.jupyter import ManagedKernelDirectory, reraise_for_server
from kernelexec.provisioning.launch import LAUNCHER
from kernelexec.provisioning.launch.kernelspec import explain_start_failure
from kernelexec.provisioning.provisioner import KernelexecProvisioner
from kernelexec.provisioning.runtime.processes import (
    AdoptedProcess,
    OomKillReader,
    ProcessMarker,
    SessionLeader,
    is_descendant,
    read_usage,
    walk_ancestors,
)
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket
from kernelexec.results import Stats

#: Interval between checks of a kernel's process where the system has no pidfd, in seconds.
_POLL_SECONDS = 0.05
#: Exit code of a wrapper for a kernel that signal n ended: 128 + n, as of shells and most programs that start others.
_SIGNALLED = 128
#: Signals that no process can catch and pass on: they go to the wrapper itself.
_MONITORED = (signal.SIGSTOP, signal.SIGKILL)


class LocalKernelProvisioner(LocalProvisioner, KernelexecProvisioner):
    """A local provisioner without polling; ``kill`` and ``cleanup`` reach every descendant of the kernel."""

    isolation = "local"
    process: Any = None
    marker: ProcessMarker | None = None
    _leader: SessionLeader | None = None
    _exit_status: int | None = None
    _oom_reader: OomKillReader
    _manager_directory: ManagedKernelDirectory | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's signature
        """Return the arguments of ``launch_kernel``; under another program's KernelManager our launcher gets a directory."""
        if self.parent is None or str(LAUNCHER) not in self.kernel_spec.argv:
            return await super().pre_launch(**kwargs)
        self._manager_directory = self._manager_directory or ManagedKernelDirectory(self.parent)
        with reraise_for_server():
            launch, _ = await self._manager_directory.prepare(
                self.kernel_spec, self.kernel_id, kwargs, isolation="local", options={}
            )
        self.connection_info = self._manager_directory.connection_info
        return launch

    @property
    def mark(self) -> str:  # type: ignore[override]  # an attribute of the interface
        """The marker's value."""
        return "" if self.marker is None else self.marker.value

    def make_branch(self, mark: str) -> LocalKernelProvisioner:
        """Return the provisioner of a branch with that mark."""
        branch = type(self)(kernel_id=mark, kernel_spec=self.kernel_spec, parent=None, **self._own_options())
        branch.marker = ProcessMarker(mark)
        return branch

    def _own_options(self) -> dict[str, Any]:
        """Return the extra constructor arguments of this kind of provisioner."""
        return {}

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Start the process, marked by an environment variable, which descendants inherit."""
        env = kwargs.setdefault("env", dict(os.environ))
        if self.checkpoint is None or self.marker is None:  # else one mark for the checkpoints and all kernels of them
            self.marker = ProcessMarker(env.setdefault(KERNEL_MARK_VARIABLE, ProcessMarker().value))
        self._oom_reader = OomKillReader()
        self._exit_status = None
        if self._manager_directory is not None:
            return await self._launch_managed(self._manager_directory, cmd, kwargs)
        return await self._launch(cmd, kwargs)

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        if self.checkpoint is not None:
            return await self._fork_checkpoint(self.checkpoint, kwargs)
        try:
            await super().launch_kernel(cmd, **kwargs)
        except FileNotFoundError:
            if self.process is None:  # the program or the directory is missing; else the process runs already
                raise
            self.cwd = kwargs.get("cwd")  # jupyter_client asks for our own directory too, which may be gone
        self._leader = SessionLeader.of(self.process.pid)
        return self.connection_info

    async def _fork_checkpoint(self, checkpoint: CheckpointSocket, kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        assert self.marker is not None
        options = json.loads(kwargs["env"][LAUNCH_OPTIONS_VARIABLE])
        pid = await checkpoint.fork({**options, "mark": self.marker.value, "stderr": kwargs["stderr"].name})
        leader = SessionLeader.of(pid)
        # The process id comes from a checkpoint, whose memory cells could change: it could name any process of the user.
        if not has_variable(pid, self.marker.entry):
            raise KernelStartFailed("The checkpoint cannot be restored: its process is not the kernel's.")
        self.process = await self._adopt(leader)
        if self.process is None:
            raise KernelStartFailed("The checkpoint cannot be restored: its process has ended.")
        self._leader, self.pid, self.pgid = leader, pid, pid
        return self.connection_info

    async def _adopt(self, leader: SessionLeader) -> AdoptedProcess | None:
        """Watch a kernel forked by a checkpoint; None after the kernel's end."""
        give_oom_score(leader.pid)
        return AdoptedProcess.of(leader.pid, leader.born)

    async def _launch_managed(self, manager_directory: ManagedKernelDirectory, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        try:
            with reraise_for_server():
                try:
                    await self._launch(cmd, kwargs)
                except OSError as exc:
                    raise KernelStartFailed(explain_start_failure(exc, cmd[0], kwargs["cwd"])) from exc
                await manager_directory.wait_ready(self.wait)
        except BaseException:
            await await_to_end(self._end())  # the manager does not
            raise
        return self.connection_info

    async def _end(self) -> None:
        await self.kill()
        await self.wait()
        await self.cleanup()

    def _kernel_status(self, status: int | None) -> int | None:
        """Return the kernel's exit status, given the exit status of the process."""
        return status

    async def poll(self) -> int | None:
        """Return the exit status, or None while the kernel lives."""
        return self._exit_status if self._exit_status is not None else self._kernel_status(await super().poll())

    async def wait(self) -> int | None:
        """Wait for the end of the process and return the exit status of the kernel; concurrent calls are safe."""
        if (process := self.process) is not None:
            await _wait_end(process)
            # A concurrent call may have the same process: its wait() returns the known status again.
            self._exit_status = self._kernel_status(process.wait())
            self.process = None
        return self._exit_status

    @property
    def is_oom_killed(self) -> bool:
        """Whether SIGKILL ended the kernel and the control group counted a kill for want of memory; Linux reports no more."""
        return self._exit_status == -signal.SIGKILL and self._oom_reader.has_new_kills

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return the process id, start time, group and mark, for another process to find the kernel."""
        leader, marker = self._leader, self.marker
        identity = {"born": leader.born if leader else 0, "mark": marker.value if marker else ""}
        return {**await super().get_provisioner_info(), **identity}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Manage a kernel started by another process; ``has_process`` is False if the kernel has ended."""
        await super().load_provisioner_info(provisioner_info)
        self.marker = ProcessMarker(str(provisioner_info["mark"]))
        leader = self._leader = SessionLeader(int(provisioner_info["pid"]), int(provisioner_info["born"]))
        self.process = AdoptedProcess.of(leader.pid, leader.born)
        self._oom_reader = OomKillReader()

    def on_ready(self) -> None:
        """Count kills in the kernel's control group, entered by now at the latest."""
        self._oom_reader = OomKillReader(self.pid)

    def on_memory_kills(self, kills: int) -> None:  # noqa: ARG002 - of the interface
        """Count only later kills as the kernel's own."""
        self._oom_reader.reset()

    async def stats(self) -> Stats:
        """Return the resource usage of the kernel and all descendants."""
        pids = await asyncio.to_thread(self.marker.marked_pids, self._leader) if self.marker is not None else []
        return await asyncio.to_thread(read_usage, pids) or Stats("local", "idle", 0)

    async def send_signal(self, signum: int) -> None:
        """Send SIGTERM or SIGKILL to the process group of the kernel, and any other signal to its leader.

        Our launcher itself interrupts the processes of the running cell; other kernels have their group interrupted.
        """
        to_group = (signal.SIGTERM, signal.SIGKILL, *([] if self.kernel_spec.interrupt_mode == "message" else [signal.SIGINT]))
        # jupyter_client's own method signals the whole group: a real-time signal, such as the one for stacks, by default ends
        # every program there that does not handle it.
        if self.process is not None and signum not in to_group:
            if platform.PLATFORM.has_group_signals:
                self.process.send_signal(signum)
            return
        await super().send_signal(signum)

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the kernel, the process group, and every descendant outside the group.

        The kernel is stopped first and killed last: descendants of a living kernel are found by parentage.
        """
        try:
            if self.process is not None and self.marker is not None:
                with suppress(OSError):
                    self.process.send_signal(signal.SIGSTOP)
                # The stopped kernel forks no more, but stays the reaper of orphans, so that these keep a parent to be found by.
                await asyncio.to_thread(self.marker.sweep, self._leader, self._spared_pids() | self._kernel_pids())
        finally:  # also if cancelled: a stopped kernel would not notice the end of this process
            with suppress(OSError, ValueError):
                await super().kill(restart=restart)
        if restart:  # else cleanup follows
            await self._sweep()

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the remaining processes of the ended kernel, and release a KernelManager's directory."""
        await super().cleanup(restart=restart)
        await self._sweep()
        if self._manager_directory is not None:
            await self._manager_directory.release(restart=restart)

    def _spared_pids(self) -> set[int]:
        """Return the processes of checkpoints."""
        return {checkpoint.pid for checkpoint in self.spared}

    def _kernel_pids(self) -> set[int]:
        """Return the processes of the kernel itself, which ``kill`` ends last."""
        return set() if self.pid is None else {self.pid}

    async def _sweep(self) -> None:
        """Kill the remaining processes of this kernel, in a thread, since the machine may have many processes."""
        if self.marker is not None:
            await asyncio.to_thread(self.marker.sweep, self._leader, self._spared_pids())


class ForkedKernelProvisioner(LocalKernelProvisioner):
    """A local provisioner of processes forked by ``server``, or started by this process if the server cannot fork."""

    server = Instance(ForkServer)

    def _own_options(self) -> dict[str, Any]:
        return {"server": self.server}

    async def _adopt(self, leader: SessionLeader) -> AdoptedProcess | None:
        """Watch a kernel forked by a checkpoint; None after the kernel's end."""
        try:
            return await self.server.adopt(leader.pid)
        except ForkServerUnavailable:  # another server has followed: before Linux 6.15 only the parent sees the exit status
            return await super()._adopt(leader)

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        if self.checkpoint is not None:
            return await super()._launch(cmd, kwargs)
        if not os.path.isdir(kwargs["cwd"]):  # noqa: ASYNC240, PTH112 - the system itself says then what is wrong
            return await super()._launch(cmd, kwargs)
        try:
            self.process = await self.server.fork(cmd[-2:], kwargs["env"], kwargs["cwd"], kwargs["stderr"])
        except ForkServerUnavailable:
            return await super()._launch(cmd, kwargs)
        self.pid = self.pgid = self.process.pid
        self._leader = SessionLeader.of(self.process.pid)
        return self.connection_info


class WrappedKernelProvisioner(LocalKernelProvisioner):
    """A local provisioner of a wrapper process, which starts the kernel and ends with the kernel.

    Signals go to the kernel itself, known as the server of the first accepted unix socket.
    """

    # A pidfd of the kernel and its id, from the first accepted socket on. Before that, signals reach the wrapper only.
    _kernel: int | None = None
    _kernel_pid: int | None = None

    def accepts_peer(self, peer: int, *, guarded: bool) -> bool:  # noqa: ARG002 - of the interface
        """Accept descendants of the wrapper; the first accepted peer is the kernel."""
        if self.pid is None or not is_descendant(peer, self.pid):
            return False
        if self._kernel is None:
            with suppress(OSError):
                self._kernel, self._kernel_pid = os.pidfd_open(peer), peer
        return True

    def _kernel_status(self, status: int | None) -> int | None:
        signum = 0 if status is None else status - _SIGNALLED
        return -signum if 0 < signum < signal.NSIG else status

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel, once known; SIGSTOP and SIGKILL go to the wrapper."""
        if signum in _MONITORED or self._kernel is None:
            # Other signals are dropped: a wrapper may die of them instead of passing them on.
            if self.process is not None and signum in (*_MONITORED, signal.SIGTERM):
                self.process.send_signal(signum)
            return
        with suppress(OSError):
            signal.pidfd_send_signal(self._kernel, signum)

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the remaining processes of the ended kernel, and close the kernel's pidfd."""
        await super().cleanup(restart=restart)
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            os.close(kernel)

    def _kernel_pids(self) -> set[int]:
        """Return the wrapper, the kernel, and the processes between them."""
        return {*super()._kernel_pids(), *(walk_ancestors(self._kernel_pid) if self._kernel_pid is not None else ())}

    async def stats(self) -> Stats:
        """Return the resource usage of the kernel and all descendants."""
        return replace(await super().stats(), isolation=self.isolation)


#: The start of a command in a process that ignores SIGCHLD. An exec keeps ignored signals, and the system then reaps children
#: by itself: bubblewrap would see no exit status of its child.
_RESTORES_CHILD_SIGNAL = (
    *(sys.executable, "-IS", "-c"),
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])",
)


class BubblewrapKernelProvisioner(WrappedKernelProvisioner):
    """A wrapped provisioner for bubblewrap: the end of bubblewrap's process ends everything in the namespaces."""

    isolation = "bubblewrap"
    arguments = List(Unicode())
    """Bubblewrap's command line, without the kernel's command."""

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - jupyter_client's own type
        restore = _RESTORES_CHILD_SIGNAL if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else ()
        return await super()._launch([*restore, *self.arguments, "--", *cmd], kwargs)


async def _wait_end(process: Any) -> None:  # noqa: ANN401 - a ``Popen`` or an ``AdoptedProcess``
    """Wait on the pidfd of a process, or else poll: jupyter_client's own polling does not allow concurrent calls."""
    fd = None
    with suppress(OSError):
        if isinstance(process, AdoptedProcess):
            fd = process.duplicate_pidfd()  # the original may be closed, and its number reused, while the loop watches
        elif platform.PLATFORM.has_pidfd:
            fd = os.pidfd_open(process.pid)
    if fd is None:
        while process.poll() is None:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_POLL_SECONDS)
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    if isinstance(process, AdoptedProcess):
        await process.wait_report()
