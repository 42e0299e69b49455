"""What a running cell of a kernel can be moved by, short of the kernel's end: requests, signals, and a look at its threads."""

from __future__ import annotations

from contextlib import suppress

import anyio

from kernelexec.kernel.client import Link
from kernelexec.kernel.death import Death
from kernelexec.launcher import protocol
from kernelexec.provisioning import InstalledSpec, KernelProvisionerBase, RuntimeDirectory
from kernelexec.provisioning.platform import STACKS_SIGNAL
from kernelexec.results import Rung
from kernelexec.secrets import SecretStore

_STACKS_BYTES, _STDERR_BYTES = 64 * 1024, 4096
#: How long the stacks may take to be written, and how often they are looked at, in seconds: nothing tells when they are there.
_STACKS_SECONDS, _STACKS_PAUSE = 0.2, 0.005


class Levers:
    """The part of a kernel that its ladder climbs by. Whoever derives from it gives it its process and its connection."""

    death: Death | None
    _installed: InstalledSpec | None
    _link: Link | None
    _provisioner: KernelProvisionerBase | None
    _runtime: RuntimeDirectory
    _secrets: SecretStore | None

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """The steps that can end a cell of it and keep the state, gentlest first."""
        if self._installed is None:
            return "interrupt", "signal", "cancel", "command"
        return ("interrupt",) if self._installed.interrupt_mode == "message" else ("signal",)

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
            self._link.control(protocol.CANCEL_REQUEST)

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
            self._link.control(protocol.KILL_REQUEST)

    async def request_stacks(self) -> None:
        """Have every thread's stack written, if the launcher listens for it (else the signal would kill).

        They are waited for, a while: a thread that does meanwhile what it is asked next can crash who reads its stack.
        """
        if self._runtime.leased or (self._runtime.path / "stacks").exists():
            before = last = await self.stacks()
            await self.signal(STACKS_SIGNAL)
            with anyio.move_on_after(_STACKS_SECONDS):
                found = before
                while found == before or found != last:
                    await anyio.sleep(_STACKS_PAUSE)
                    last, found = found, await self.stacks()

    async def stacks(self) -> str:
        """What the launcher wrote of its threads' stacks so far: to a file, or to stderr where it sees none of ours."""
        if self._runtime.leased:
            return await self.stderr()
        return self._shown(self._runtime.read("stacks", _STACKS_BYTES))

    async def stderr(self) -> str:
        """The end of what the process wrote to its own stderr."""
        if (asked := getattr(self._provisioner, "complaint", None)) is not None:
            return self._shown(str(await asked()).encode())
        return self._shown(self._runtime.read("stderr", _STDERR_BYTES))

    def _shown(self, raw: bytes) -> str:
        """What the process wrote, without secrets."""
        text = raw.decode("utf-8", "replace")
        return text if self._secrets is None else self._secrets.masker.text(text)
