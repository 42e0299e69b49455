"""The provisioner of kernels that are child processes of this one; its entry point is ``kernelexec-local``."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

import anyio
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from kernelexec.errors import KernelStartFailed
from kernelexec.launcher.protocol import KERNEL_MARK_VARIABLE
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.process_usage import read_usage
from kernelexec.provisioning.jupyter.manager_bridge import ManagedKernelDirectory, reraise_for_server
from kernelexec.provisioning.launch.kernelspec import LAUNCHER, explain_start_failure
from kernelexec.provisioning.provisioner import KernelexecProvisioner
from kernelexec.provisioning.runtime.adopted_process import AdoptedProcess
from kernelexec.provisioning.runtime.processes import OomKillReader, ProcessMarker, SessionLeader
from kernelexec.results import Stats

#: Interval between checks of a kernel's process where the system has no pidfd, in seconds.
_POLL_SECONDS = 0.05


class LocalKernelProvisioner(LocalProvisioner, KernelexecProvisioner):
    """A local provisioner that waits without polling and whose kill and cleanup reach every descendant of the kernel."""

    isolation = "local"
    process: Any = None
    marker: ProcessMarker | None = None
    _leader: SessionLeader | None = None
    _exit_status: int | None = None
    _oom_reader = OomKillReader()
    _oom_kills = 0
    _manager_directory: ManagedKernelDirectory | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's signature
        """Return the arguments of ``launch_kernel``; a KernelManager of another program gets a directory for our launcher."""
        if self.parent is None or str(LAUNCHER) not in self.kernel_spec.argv:
            return await super().pre_launch(**kwargs)
        self._manager_directory = self._manager_directory or ManagedKernelDirectory(self.parent)
        with reraise_for_server():
            launch, _ = await self._manager_directory.prepare(
                self.kernel_spec, self.kernel_id, kwargs, isolation="local", options={}
            )
        self.connection_info = self._manager_directory.connection_info
        return launch

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Start the process, with an environment variable that marks it and that its descendants inherit."""
        env = kwargs.setdefault("env", dict(os.environ))
        self.marker = ProcessMarker(env.setdefault(KERNEL_MARK_VARIABLE, ProcessMarker().value))
        self._oom_reader = OomKillReader()
        self._oom_kills = self._oom_reader.count_kills()
        self._exit_status = None
        if self._manager_directory is not None:
            return await self._launch_managed(self._manager_directory, cmd, kwargs)
        return await self._launch(cmd, kwargs)

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        try:
            await super().launch_kernel(cmd, **kwargs)
        except FileNotFoundError:
            if self.process is None:
                raise
            self.cwd = kwargs.get("cwd")  # jupyter_client asks for our own directory too, which may be gone
        self._leader = SessionLeader.of(self.process.pid)
        return self.connection_info

    async def _launch_managed(self, manager_directory: ManagedKernelDirectory, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        try:
            with reraise_for_server():
                try:
                    await super().launch_kernel(cmd, **kwargs)
                except OSError as exc:
                    raise KernelStartFailed(explain_start_failure(exc, cmd[0], kwargs["cwd"])) from exc
                self._leader = SessionLeader.of(self.process.pid)
                await manager_directory.wait_ready(self.wait)
        except BaseException:
            with anyio.CancelScope(shield=True):  # the manager does not
                await self.kill()
                await self.wait()
                await self.cleanup()
            raise
        return self.connection_info

    async def poll(self) -> int | None:
        """Return the exit status, or None while the kernel lives."""
        return self._exit_status if self._exit_status is not None else await super().poll()

    async def wait(self) -> int | None:
        """Wait on the pidfd until the process has ended, and return its exit status; concurrent calls are safe."""
        process = self.process
        if process is None:
            return self._exit_status
        if not platform.PLATFORM.has_pidfd:
            return await self._wait_by_polling(process)
        try:
            fd = process.duplicate_pidfd() if isinstance(process, AdoptedProcess) else os.pidfd_open(process.pid)
        except OSError:
            return await self._wait_by_polling(process)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        if isinstance(process, AdoptedProcess):
            await process.wait_report()
        self._exit_status = process.wait()
        self.process = None
        return self._exit_status

    async def _wait_by_polling(self, process: Any) -> int | None:  # noqa: ANN401 - as ``process``
        """Poll where the system has no pidfd; jupyter_client's own polling does not allow concurrent calls."""
        while process.poll() is None:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_POLL_SECONDS)
        self._exit_status = process.wait()
        self.process = None
        return self._exit_status

    @property
    def is_oom_killed(self) -> bool:
        """Whether the kernel was killed while its control group counted a kill for want of memory; the system tells no more."""
        return self._exit_status == -signal.SIGKILL and self._oom_reader.count_kills() > self._oom_kills

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return the process id, start time, group and mark, by which another process finds the kernel."""
        leader, marker = self._leader, self.marker
        identity = {"born": leader.born if leader else 0, "mark": marker.value if marker else ""}
        return {**await super().get_provisioner_info(), **identity}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Manage a kernel that another process started; ``has_process`` says whether it lives."""
        await super().load_provisioner_info(provisioner_info)
        self.marker = ProcessMarker(str(provisioner_info["mark"]))
        leader = self._leader = SessionLeader(int(provisioner_info["pid"]), int(provisioner_info["born"]))
        self.process = AdoptedProcess.of(leader.pid, leader.born)

    def on_ready(self) -> None:
        """Count kills in the kernel's control group, which it has entered by now."""
        self._oom_reader = OomKillReader(self.pid)
        self._oom_kills = self._oom_reader.count_kills()

    def on_memory_kills(self, kills: int) -> None:  # noqa: ARG002 - of the interface
        """Count only later kills as the kernel's own."""
        self._oom_kills = self._oom_reader.count_kills()

    async def stats(self) -> Stats:
        """Return the use of the kernel and of all its descendants."""
        pids = await asyncio.to_thread(self.marker.marked_pids, self._leader) if self.marker is not None else []
        return await asyncio.to_thread(read_usage, pids) or Stats("local", "idle", 0)

    async def send_signal(self, signum: int) -> None:
        """Send SIGINT, SIGTERM or SIGKILL to the process group of the kernel, and any other signal to its leader."""
        if self.process is not None and signum not in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if platform.PLATFORM.has_group_signals:
                self.process.send_signal(signum)
            return
        await super().send_signal(signum)

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the kernel, its process group, and every descendant that left it.

        The kernel is stopped first and killed last: while it lives, its descendants are found by their parents.
        """
        try:
            if self.process is not None and self.marker is not None:
                with suppress(OSError):
                    self.process.send_signal(signal.SIGSTOP)
                await asyncio.to_thread(self.marker.sweep, self._leader, self.pid)
        finally:  # a stopped kernel would not notice the end of this process
            with suppress(OSError, ValueError):
                await super().kill(restart=restart)
        if restart:  # else cleanup follows
            await self._sweep()

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the processes that the ended kernel left behind."""
        await super().cleanup(restart=restart)
        await self._sweep()
        if self._manager_directory is not None:
            await self._manager_directory.release(restart=restart)

    async def signal_children(self, signum: int) -> bool:
        """Signal every descendant of the kernel, found by mark, session and parents."""
        if self.marker is not None:
            await asyncio.to_thread(self.marker.signal, signum, leader=self._leader, spare=self._kernel_pids())
        return True

    def _kernel_pids(self) -> set[int]:
        """Return the processes that are the kernel itself."""
        return set() if self.pid is None else {self.pid}

    async def _sweep(self) -> None:
        """Kill the remaining processes of this kernel, in a thread: the list of processes may be long."""
        if self.marker is not None:
            await asyncio.to_thread(self.marker.sweep, self._leader)
