"""How a kernel ends: by itself, politely or killed; and what is left for the next one of its session."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from kernelexec.kernel.death import Death
from kernelexec.kernel.interrupts import Levers
from kernelexec.provisioning import KernelProvisionerBase, RuntimeDirectory
from kernelexec.provisioning.runtime.handover import forget

_WORDS_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Remains:
    """What of an ended kernel goes on: a provisioner whose container is good for the next one, and its private directory."""

    provisioner: Any
    runtime: RuntimeDirectory

    async def end(self) -> None:
        """Leave nothing of it."""
        with anyio.CancelScope(shield=True):
            await self.provisioner.cleanup()
            await anyio.to_thread.run_sync(self.runtime.remove)


class Remaining:
    """Keeps what is left of one kernel for the next one, until nobody is to come."""

    def __init__(self) -> None:
        self._kept: Remains | None = None
        self._ended = False

    def take(self) -> Remains | None:
        """What there is, for the next kernel."""
        kept, self._kept = self._kept, None
        return kept

    async def keep(self, remains: Remains | None) -> None:
        """Have that for the next one; nothing is left of it where none is to come."""
        await self.drop()
        self._kept = remains
        if self._ended:
            await self.drop()

    async def end(self) -> None:
        """No kernel is to come."""
        self._ended = True
        await self.drop()

    async def drop(self) -> None:
        """Nothing is left for the next one, which may come late."""
        if (kept := self.take()) is not None:
            await kept.end()


class Ending(Levers, ABC):
    """The part of a kernel that ends it. Whoever derives from it sets ``_remains`` to what it is to begin with."""

    died: asyncio.Event
    on_death: Callable[[Death], None] | None
    _remains: Remains | None
    """Of the kernel before, until this one starts; then of this one, once it has ended."""
    _killing: anyio.Lock
    _over = False
    """Whether nothing of it is left but what goes on, which another kernel may have by now."""
    _for_good = False
    """Whether no other kernel is to follow."""
    _unwanted: bool

    @property
    @abstractmethod
    def _patience(self) -> float:
        """How long it waits for a new owner when its own has died, in seconds."""

    async def exits(self, patience: float) -> bool:
        """Whether the kernel's process ends within ``patience`` seconds, as it said it would."""
        with anyio.move_on_after(patience):
            await self.died.wait()
        return self.death is not None

    async def kill(self) -> None:
        """Kill the process and all its descendants, and wait until it is gone: see ``take_remains`` for what may go on."""
        self._unwanted = True
        with anyio.CancelScope(shield=True):
            async with self._killing:
                await self._kill()

    async def _kill(self) -> None:
        provisioner = self._provisioner
        if self._over:
            return
        if provisioner is not None and self.death is None:
            await provisioner.kill(restart=not self._for_good)
            status = await provisioner.wait()
            if self._link is not None:
                await self._link.drained()
            self._set_death(Death.of(status))
        if self._link is not None:
            self._link.close()
        if provisioner is not None:
            self._provisioner = None
            await provisioner.cleanup(restart=not self._for_good)
            if getattr(provisioner, "reusable", False):
                self._remains = Remains(provisioner, self._runtime)
        if self._remains is not None and not await anyio.to_thread.run_sync(self._runtime.clear):
            await self._remains.provisioner.cleanup()
            self._remains = None
        if self._remains is None:
            await anyio.to_thread.run_sync(self._runtime.remove)
        if self._patience:
            forget(self._runtime.session)
        self._over = True

    def take_remains(self) -> Remains | None:
        """What goes on, for the caller to use or to end; None if there is nothing, or somebody has it."""
        remains, self._remains = self._remains, None
        return remains

    async def stop(self, patience: float) -> None:
        """End the kernel: politely for ``patience`` seconds, then by force. Nothing of it is left."""
        with anyio.CancelScope(shield=True):
            if self.alive and self._link is not None and patience:
                self._link.control("shutdown_request", restart=False)
                await self.exits(patience)
            self._for_good = True
            await self.kill()
            if (remains := self.take_remains()) is not None:
                await remains.end()

    @property
    def alive(self) -> bool:
        """Whether the process lives and still talks to us."""
        return self._link is not None and self.death is None and not self._link.hung_up

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
