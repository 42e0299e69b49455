"""A kernel that has cells to run yet, whose results came from the cache: it runs them before anybody looks at it."""

from __future__ import annotations

from kernelexec.cells import CodeCell
from kernelexec.config import Config
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.queue import Queue
from kernelexec.session.cells.result_cache import NOTHING, Caching


class Behind:
    """The part of a session that has its kernel catch up. Whoever derives from it gives it its queue."""

    isolation: str
    _caching: Caching | None
    _config: Config
    _queue: Queue

    async def _caught_up(self) -> None:
        """Return once the kernel has run all cells that have a result, unless another one runs now: that one's turn does it."""
        if self._caching is not None and self._caching.behind and self._queue.first is None:
            turn = Turn(CodeCell(NOTHING), timeout=self._config.budgets.timeout, own=True, isolation=self.isolation)
            self._queue.add(turn)
            await turn.done.wait()
