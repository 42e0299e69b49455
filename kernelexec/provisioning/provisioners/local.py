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
from kernelexec.provisioning.host.usage import usage_of
from kernelexec.provisioning.jupyter.manager_bridge import Guest, reraise_for_server
from kernelexec.provisioning.launch.kernelspec import LAUNCHER, start_failure
from kernelexec.provisioning.provisioners.adopted import AdoptedProcess
from kernelexec.provisioning.provisioners.base import KernelexecProvisioner
from kernelexec.provisioning.runtime.processes import Leader, Mark, OomCount
from kernelexec.results import Stats

#: How often a kernel's process is looked at where the system cannot tell of its end, in seconds.
_LOOK_SECONDS = 0.05


class LocalKernelProvisioner(LocalProvisioner, KernelexecProvisioner):
    """A local provisioner that waits without polling and whose kill and cleanup reach every descendant of the kernel."""

    isolation = "local"
    process: Any = None
    mark: Mark | None = None
    _leader: Leader | None = None
    _left: int | None = None
    _count = OomCount()
    _oom_kills = 0
    _guest: Guest | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's signature
        """Return the arguments of ``launch_kernel``; a KernelManager of another program gets a directory for our launcher."""
        if self.parent is None or str(LAUNCHER) not in self.kernel_spec.argv:
            return await super().pre_launch(**kwargs)
        self._guest = self._guest or Guest(self.parent)
        with reraise_for_server():
            launch, _ = await self._guest.receive(self.kernel_spec, self.kernel_id, kwargs, isolation="local", options={})
        self.connection_info = self._guest.connection_info
        return launch

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Start the process, with an environment variable that marks it and that its descendants inherit."""
        env = kwargs.setdefault("env", dict(os.environ))
        self.mark = Mark(env.setdefault(KERNEL_MARK_VARIABLE, Mark().value))
        self._count = OomCount()
        self._oom_kills = self._count.kills()
        self._left = None
        if self._guest is not None:
            return await self._launch_guest(self._guest, cmd, kwargs)
        return await self._launch(cmd, kwargs)

    async def _launch(self, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        try:
            await super().launch_kernel(cmd, **kwargs)
        except FileNotFoundError:
            if self.process is None:
                raise
            self.cwd = kwargs.get("cwd")  # jupyter_client asks for our own directory too, which may be gone
        self._leader = Leader.of(self.process.pid)
        return self.connection_info

    async def _launch_guest(self, guest: Guest, cmd: list[str], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        try:
            with reraise_for_server():
                try:
                    await super().launch_kernel(cmd, **kwargs)
                except OSError as exc:
                    raise KernelStartFailed(start_failure(exc, cmd[0], kwargs["cwd"])) from exc
                self._leader = Leader.of(self.process.pid)
                await guest.welcome(self.wait)
        except BaseException:
            with anyio.CancelScope(shield=True):  # no other code would
                await self.kill()
                await self.wait()
                await self.cleanup()
            raise
        return self.connection_info

    async def poll(self) -> int | None:
        """Return the exit status, or None while the kernel lives."""
        return self._left if self._left is not None else await super().poll()

    async def wait(self) -> int | None:
        """Wait on the pidfd until the process has ended, and return its exit status; concurrent calls are safe."""
        process = self.process
        if process is None:
            return self._left
        if not platform.HERE.process_handles:
            return await self._wait_by_looking(process)
        try:
            fd = process.opened() if isinstance(process, AdoptedProcess) else os.pidfd_open(process.pid)
        except OSError:
            return await self._wait_by_looking(process)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        if isinstance(process, AdoptedProcess):
            await process.hear()
        self._left = process.wait()
        self.process = None
        return self._left

    async def _wait_by_looking(self, process: Any) -> int | None:  # noqa: ANN401 - as ``process``
        """Poll where the system has no pidfd; jupyter_client's own polling does not allow concurrent calls."""
        while process.poll() is None:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_LOOK_SECONDS)
        self._left = process.wait()
        self.process = None
        return self._left

    @property
    def is_oom_killed(self) -> bool:
        """Whether the kernel was killed while its control group counted a kill for want of memory, which is all we can know."""
        return self._left == -signal.SIGKILL and self._count.kills() > self._oom_kills

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return the process id, start time, group and mark, by which another process finds the kernel."""
        leader, mark = self._leader, self.mark
        identity = {"born": leader.born if leader else 0, "mark": mark.value if mark else ""}
        return {**await super().get_provisioner_info(), **identity}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Manage a kernel that another process started; ``has_process`` says whether it lives."""
        await super().load_provisioner_info(provisioner_info)
        self.mark = Mark(str(provisioner_info["mark"]))
        leader = self._leader = Leader(int(provisioner_info["pid"]), int(provisioner_info["born"]))
        self.process = AdoptedProcess.of(leader.pid, leader.born)

    def on_ready(self) -> None:
        """Count kills in the kernel's control group, which it has entered by now."""
        self._count = OomCount(self.pid)
        self._oom_kills = self._count.kills()

    def on_memory_kills(self, kills: int) -> None:  # noqa: ARG002 - of the interface
        """Count only later kills as the kernel's own."""
        self._oom_kills = self._count.kills()

    async def stats(self) -> Stats:
        """Return the use of the kernel and of all its descendants."""
        pids = await asyncio.to_thread(self.mark.holders, self._leader) if self.mark is not None else []
        return await asyncio.to_thread(usage_of, pids) or Stats("local", "idle", 0)

    async def send_signal(self, signum: int) -> None:
        """Send SIGINT, SIGTERM or SIGKILL to the process group of the kernel, and any other signal to its leader."""
        if self.process is not None and signum not in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if platform.HERE.signals:
                self.process.send_signal(signum)
            return
        await super().send_signal(signum)

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the kernel, its process group, and every descendant that left it.

        The kernel is stopped first and killed last: while it lives, its descendants are found by their parents.
        """
        try:
            if self.process is not None and self.mark is not None:
                with suppress(OSError):
                    self.process.send_signal(signal.SIGSTOP)
                await asyncio.to_thread(self.mark.sweep, self._leader, self.pid)
        finally:  # stopped, it would not even notice the end of this process
            with suppress(OSError, ValueError):
                await super().kill(restart=restart)
        if restart:  # else cleanup follows
            await self._sweep()

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the processes that the ended kernel left behind."""
        await super().cleanup(restart=restart)
        await self._sweep()
        if self._guest is not None:
            await self._guest.leave(restart=restart)

    async def signal_children(self, signum: int) -> bool:
        """Signal every descendant of the kernel, found by mark, session and parents."""
        if self.mark is not None:
            await asyncio.to_thread(self.mark.signal, signum, leader=self._leader, spare=self._own())
        return True

    def _own(self) -> set[int]:
        """Return the processes that are the kernel itself."""
        return set() if self.pid is None else {self.pid}

    async def _sweep(self) -> None:
        """Kill the remaining processes of this kernel, in a thread: the list of processes may be long."""
        if self.mark is not None:
            await asyncio.to_thread(self.mark.sweep, self._leader)
