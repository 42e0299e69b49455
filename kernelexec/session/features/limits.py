"""What a session uses and may use: its figures, and its limits, which change while its kernel lives."""

from __future__ import annotations

from dataclasses import replace

from kernelexec.config import Config, LimitChange
from kernelexec.errors import InvalidRequest
from kernelexec.results import KernelStatus, LimitsSet, Stats
from kernelexec.session.cells.queue import Queue
from kernelexec.session.kernels.languages import Kernels
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import Life


class Limiting:
    """The part of a session that measures and limits. Whoever derives from it gives it its life, its queue and its kernels."""

    name: str
    isolation: str
    life: Life
    _config: Config
    _keeper: Keeper
    _kernels: Kernels
    _queue: Queue

    async def stats(self) -> Stats:
        """What the session's Python kernel uses now, with all that it started; also while a cell runs.

        Without a living kernel there are no figures, and ``kernel`` says ``none``. ``cpu_percent`` counts from the call before.

        Raises:
            Closed: the session is.
            EngineFailed: the container engine does not say.
        """
        self.life.check_open()
        keeper, kernel = self._keeper, self._keeper.kernel
        if kernel is None or not kernel.alive:
            return Stats(self.isolation, "starting" if keeper.is_starting else "none", keeper.epoch)
        status: KernelStatus = "busy" if self._queue.first is not None else "idle"
        epoch = keeper.epoch
        return replace(await kernel.usage.stats(), isolation=self.isolation, kernel=status, kernel_epoch=epoch)

    async def set_limits(
        self,
        profile: str | None = None,
        *,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        timeout: float | None = None,
    ) -> LimitsSet:
        """Change what the session may use, from now on and for its later kernels too; the state is kept. None is no change.

        ``profile`` names one of the configuration's; what is given beside it goes over it.

        The container of a living kernel changes at once, also while a cell runs. ``timeout`` is that of the cells to come.
        On this machine only ``timeout`` can be had: the answer, and the next result, say what could not.

        Raises:
            InvalidRequest, InvalidConfig, InvalidTimeout, Closed: before anything changed.
            LimitRefused: the living kernel cannot have that limit, as where it uses more memory; nothing changed.
            EngineFailed: the container engine does not answer.
        """
        self.life.check_open()
        change = LimitChange(profile, memory_bytes, cpus, timeout)
        if change == LimitChange():
            message = "set_limits() was given no limit: name a profile, or memory_bytes, cpus or timeout."
            raise InvalidRequest(message)
        async with self._kernels.order:
            return await self._change(change.resolved(self._config))

    async def _change(self, change: LimitChange) -> LimitsSet:
        wanted = change.applied(self._config)
        if missing := await self._kernels.limit(wanted, change.memory_bytes, change.cpus):
            for keeper in self._kernels.chosen(None):
                keeper.remarks.extend(missing)
            wanted = wanted.model_copy(update={"container": self._config.container})
        self._config = wanted
        if missing:
            return LimitsSet(None, None, wanted.budgets.timeout, missing)
        return LimitsSet(wanted.container.memory_bytes, wanted.container.cpus, wanted.budgets.timeout)
