"""A kernel as a child process of this one. jupyter_client calls it; it is found by the entry point ``kernelexec-local``."""

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
from kernelexec.provisioning.jupyter.manager_bridge import Guest, told
from kernelexec.provisioning.launch.kernelspec import LAUNCHER, start_failure
from kernelexec.provisioning.provisioners.adopted import AdoptedProcess
from kernelexec.provisioning.runtime.processes import Leader, Mark, OomCount
from kernelexec.results import Stats

#: How often a kernel's process is looked at where the system cannot tell of its end, in seconds.
_LOOK_SECONDS = 0.05


class Provisioner(LocalProvisioner):
    """jupyter_client's local provisioner with a wait that does not poll and an end that spares no descendant."""

    isolation = "local"
    process: Any = None
    mark: Mark | None = None
    _leader: Leader | None = None
    _left: int | None = None
    _count = OomCount()
    _oom_kills = 0
    _guest: Guest | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - jupyter_client's signature
        """Called before ``launch_kernel``; what it returns is given there. Our launcher is a guest of other KernelManagers."""
        if self.parent is None or str(LAUNCHER) not in self.kernel_spec.argv:
            return await super().pre_launch(**kwargs)
        self._guest = self._guest or Guest(self.parent)
        with told():
            launch, _ = await self._guest.receive(self.kernel_spec, self.kernel_id, kwargs, isolation="local", options={})
        self.connection_info = self._guest.connection_info
        return launch

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:  # noqa: ANN401 - jupyter_client's own type
        """Called by the kernel driver (or a KernelManager) once; remembers the mark that the kernel's children inherit."""
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
            with told():
                try:
                    await super().launch_kernel(cmd, **kwargs)
                except OSError as exc:
                    raise KernelStartFailed(start_failure(exc, cmd[0], kwargs["cwd"])) from exc
                self._leader = Leader.of(self.process.pid)
                await guest.welcome(self.wait)
        except BaseException:
            with anyio.CancelScope(shield=True):  # nobody else would
                await self.kill()
                await self.wait()
                await self.cleanup()
            raise
        return self.connection_info

    async def poll(self) -> int | None:
        """The exit status, or None while the kernel lives."""
        return self._left if self._left is not None else await super().poll()

    async def wait(self) -> int | None:
        """The exit status once the kernel's process has ended: at once, by its pidfd, and safe to call more than once."""
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
        """The same where nothing tells of the end. jupyter_client's own way cannot be gone by two at once."""
        while process.poll() is None:  # noqa: ASYNC110 - see above
            await asyncio.sleep(_LOOK_SECONDS)
        self._left = process.wait()
        self.process = None
        return self._left

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed while something in its control group was, for want of memory: as close as it can be known."""
        return self._left == -signal.SIGKILL and self._count.kills() > self._oom_kills

    async def get_provisioner_info(self) -> dict[str, Any]:
        """What another process finds the kernel by: its id and when it was born, its group, its mark."""
        leader, mark = self._leader, self.mark
        told = {"born": leader.born if leader else 0, "mark": mark.value if mark else ""}
        return {**await super().get_provisioner_info(), **told}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Care for a kernel that another process started; ``has_process`` says whether it lives."""
        await super().load_provisioner_info(provisioner_info)
        self.mark = Mark(str(provisioner_info["mark"]))
        leader = self._leader = Leader(int(provisioner_info["pid"]), int(provisioner_info["born"]))
        self.process = AdoptedProcess.of(leader.pid, leader.born)

    def served(self) -> None:
        """Called when the kernel serves: it is in its control group by now."""
        self._count = OomCount(self.pid)
        self._oom_kills = self._count.kills()

    def survived(self, _kills: int) -> None:
        """Called when something was killed for want of memory, and the kernel lives: what counts is what comes after."""
        self._oom_kills = self._count.kills()

    async def stats(self) -> Stats:
        """What the kernel and all that it started use."""
        pids = await asyncio.to_thread(self.mark.holders, self._leader) if self.mark is not None else []
        found = await asyncio.to_thread(usage_of, pids)
        return found or Stats("local", "idle", 0)

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel's process group; its leader alone for anything but interrupt, terminate and kill."""
        if self.process is not None and signum not in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if platform.HERE.signals:
                self.process.send_signal(signum)
            return
        await super().send_signal(signum)

    async def kill(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - jupyter_client's signature
        """Kill the kernel, its process group, and every descendant that left it.

        The kernel is stopped first and dies last: as long as it lives its descendants can be told by their parents.
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
        """Called when the kernel has ended: what it left behind ends too."""
        await super().cleanup(restart=restart)
        await self._sweep()
        if self._guest is not None:
            await self._guest.leave(restart=restart)

    async def signal_children(self, signum: int) -> int:
        """Signal every descendant but the kernel itself; how many there were."""
        if self.mark is None:
            return 0
        return await asyncio.to_thread(self.mark.signal, signum, leader=self._leader, spare=self._own())

    def _own(self) -> set[int]:
        """The processes that are the kernel itself."""
        return set() if self.pid is None else {self.pid}

    async def _sweep(self) -> None:
        """Kill whatever of this kernel still lives. In a thread: a machine's list of processes may be long."""
        if self.mark is not None:
            await asyncio.to_thread(self.mark.sweep, self._leader)
