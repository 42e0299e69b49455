"""What is measured of a kernel's container: what it uses, its limits, and whether it was killed for want of memory."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from kernelexec.docker.container_usage import change, usage
from kernelexec.docker.events import News
from kernelexec.errors import EngineRefused, KernelStartFailed, LimitRefused
from kernelexec.provisioning.container.oom import Kills
from kernelexec.results import Stats
from kernelexec.results.usage import size_text

KILLED = -signal.SIGKILL
STOPPED = "The kernel was stopped before it started."
#: How much later than the end of a container its reason may be told, in seconds.
_REASON_SECONDS = 0.25
T = TypeVar("T")


class Measured:
    """The part of a container's provisioner that measures. Whoever derives from it makes and watches the container."""

    _id = ""
    _status: int | None = None
    _memory_bytes: int | None = None
    _swap_bytes = 0
    """Swap beside the memory."""
    _oom = False
    _unwanted = False
    """Whether this side killed it."""
    _flagged = False
    """Whether the engine says that something in it was killed for want of memory: it never says otherwise again."""
    _was_flagged = False
    """Whether it said so of an earlier kernel of the container."""
    _changed = False
    """Whether it has other limits by now than it was made with."""
    _counted = False
    """Whether the count of kills until the kernel's end is known, and ``_oom`` with it."""

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traits
        super().__init__(**kwargs)
        self._news: News | None = None
        self._look = asyncio.Event()
        self._kills = Kills()

    async def _hear(self) -> News:
        """Have the engine's news told, until somebody lets go of them.

        Raises:
            KernelStartFailed: somebody has, already.
            EngineAway: the engine does not answer.
        """

        def hold() -> None:
            self._news = News.hold()

        await to_end(hold)
        if self._news is None:
            raise KernelStartFailed(STOPPED)
        return self._news

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel was killed for want of memory."""
        return self._oom

    @property
    def memory_limit_bytes(self) -> int | None:
        """How much memory everything in the container may use together."""
        return self._memory_bytes

    def survived(self, kills: int) -> None:
        """Take note of what was killed for want of memory, as the living kernel counts it: none of these was the kernel."""
        if self._news is not None:
            self._kills.survived(kills, self._news.memory_kills(self._id))

    async def _learn_why(self) -> None:
        """Whether it ended for want of memory: that is mostly told before the end, and at times a moment after it."""
        with anyio.move_on_after(_REASON_SECONDS):
            while self._status == KILLED and not self._unwanted and not self._counted and self._news is not None:
                self._look.clear()
                self._oom = self._kills.was_one(self._news.memory_kills(self._id), flagged=self._flagged)
                if self._oom:
                    break
                await self._look.wait()

    async def stats(self) -> Stats:
        """What the container uses.

        Raises:
            EngineFailed: the engine does not say.
        """
        assert self._news is not None
        return await in_thread(usage, self._news.engine, self._id)

    async def limit(self, memory_bytes: int | None, cpus: float | None) -> None:
        """Change the limits of the running container; None is no change.

        An engine with control groups of version 2 would kill what uses more than it may: so that is looked at first.

        Raises:
            LimitRefused: it uses more, or the engine refuses; nothing changed.
            EngineAway, ContainerGone: nobody can know.
        """
        news = self._news
        assert news is not None
        found = await self.stats()
        used = found.memory_bytes or 0
        now = size_text(found.memory_limit_bytes) if found.memory_limit_bytes else "none"
        if memory_bytes is not None and used >= memory_bytes:
            message = (
                f"memory_bytes={memory_bytes}: the kernel uses {size_text(used)}, more than {size_text(memory_bytes)}. "
                f"Its limit is still {now}: delete variables first, or restart the session."
            )
            raise LimitRefused(message)
        both = None if memory_bytes is None else memory_bytes + self._swap_bytes
        try:
            await in_thread(lambda: change(news.engine, self._id, memory_bytes=memory_bytes, swap_bytes=both, cpus=cpus))
        except EngineRefused as exc:
            message = f"The limits stay as they are (memory {now}, of which {size_text(used)} are in use): {exc}"
            raise LimitRefused(message) from exc
        self._memory_bytes, self._changed = memory_bytes or self._memory_bytes, True


async def in_thread(call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - the call's own
    """A call of the engine, which blocks, in a thread: as many at once as there are containers to care for."""
    return await anyio.to_thread.run_sync(call, *args, limiter=anyio.CapacityLimiter(1))


async def to_end(call: Callable[..., object], *args: Any) -> None:  # noqa: ANN401 - the call's own
    """The same, for a call that gives something to whoever is cancelled too: it has ended when this ends, however that is.

    A scope of anyio's keeps off what anyio cancels, but not what cancels the task itself, as ``asyncio.wait_for`` does.
    """
    with anyio.CancelScope(shield=True):
        calling = asyncio.ensure_future(in_thread(call, *args))
        try:
            await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait({calling})
            raise
