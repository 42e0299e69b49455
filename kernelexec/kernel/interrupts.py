"""Requests and signals that interrupt a running cell without ending the kernel, and the stacks of its threads."""

from __future__ import annotations

from contextlib import suppress

import anyio

from kernelexec.kernel.process import KernelProcess
from kernelexec.launcher import protocol
from kernelexec.provisioning.platform import STACKS_SIGNAL
from kernelexec.results import InterruptStep

_STACKS_BYTES = 64 * 1024
#: How long the stacks may take to be written, and how often they are read meanwhile, in seconds: nothing reports their end.
_STACKS_SECONDS, _STACKS_PAUSE = 0.2, 0.005


class Interrupter:
    """The means that end a running cell; `session/kernels/escalation` decides their order."""

    def __init__(self, process: KernelProcess) -> None:
        self._process = process

    @property
    def available_steps(self) -> tuple[InterruptStep, ...]:
        """The steps that can end a cell of this kernel and keep the state, gentlest first."""
        installed = self._process.installed
        if installed is None:
            return "interrupt", "signal", "cancel", "command"
        return ("interrupt",) if installed.interrupt_mode == "message" else ("signal",)

    async def request_interrupt(self, patience: float) -> bool:
        """Send an `interrupt_request`; return whether the kernel replied to it within ``patience`` seconds."""
        if not self._process.has_client:
            return False
        client = self._process.client
        client.send_control("interrupt_request")
        with anyio.move_on_after(patience):
            await client.control_answered.wait()
        return client.control_answered.is_set()

    async def request_cancel(self, patience: float) -> bool:
        """Ask the launcher to cancel a top-level await, even if the cell has handled the interrupt signal.

        Return whether the main thread has run Python code since the interrupt: it did not while it is in compiled code, nor, as
        far as is known, while no other thread can answer.
        """
        if not self._process.has_client:
            return True
        reply = await self._process.client.request("control", protocol.CANCEL_REQUEST, {}, patience=patience)
        return reply is not None and reply.get("is_back") is not False

    async def request_skip(self, msg_id: str, patience: float) -> bool:
        """Ask the launcher not to run a cell that waits for one of another client; return whether it will not run."""
        if not self._process.has_client or "cancel" not in self.available_steps:
            return False
        reply = await self._process.client.request("control", protocol.SKIP_REQUEST, {"msg_id": msg_id}, patience=patience)
        return reply is not None and reply.get("is_skipped") is True

    async def signal(self, signum: int) -> None:
        """Signal the kernel from outside."""
        process = self._process
        if process.provisioner is not None and process.death is None:
            with suppress(OSError):
                await process.provisioner.send_signal(signum)

    def kill_processes(self) -> None:
        """Ask the launcher to kill the processes that the running cell has started."""
        if self._process.has_client:
            self._process.client.send_control(protocol.KILL_REQUEST)

    async def request_stacks(self) -> None:
        """Have every thread's stack written, if the launcher listens for the signal (it would kill any other process).

        Wait until they are complete: a thread that runs on while its stack is read can crash the process.
        """
        runtime = self._process.runtime
        if runtime.has_lease or (runtime.path / "stacks").exists():
            before = last = await self.read_stacks()
            await self.signal(STACKS_SIGNAL)
            with anyio.move_on_after(_STACKS_SECONDS):
                stacks = before
                while stacks == before or stacks != last:
                    await anyio.sleep(_STACKS_PAUSE)
                    last, stacks = stacks, await self.read_stacks()

    async def read_stacks(self) -> str:
        """Return the stacks that the launcher has written: to a file, or to stderr where it sees no file of ours."""
        runtime = self._process.runtime
        if runtime.has_lease:
            return await self._process.read_stderr()
        return self._process.mask_output(runtime.read_file("stacks", _STACKS_BYTES))
