"""One kernel after another in a container that goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec

from kernelexec.config import Container
from kernelexec.docker.create_options import Order
from kernelexec.docker.events import News
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning.container.create import make, remove_now
from kernelexec.provisioning.container.init_client import Warden
from kernelexec.provisioning.container.oom import Kills
from kernelexec.provisioning.container.stats import KILLED, STOPPED, Measured, to_end

#: Where a container has files in memory, beside what its options name.
_IN_MEMORY = frozenset({"/tmp", "/dev/shm", "/dev/mqueue"})  # noqa: S108 - the container's own


class Succession(Measured):
    """The part of a container's provisioner that has the next kernel forked. Whoever derives from it makes the container."""

    container: Any
    limits: Any
    mounts: Any
    name: Any
    warden: Any
    _pid = 0
    """Of the container's first process, as this machine counts."""
    _warden: Warden | None = None
    _clean = False
    """Whether nothing of the last kernel is left."""
    _sources: Mapping[str, tuple[int, int] | None]

    @property
    def reusable(self) -> bool:
        """Whether the next kernel can be forked in this container."""
        return self._clean and self._warden is not None and self._warden.open

    def fits(self, spec: KernelSpec) -> bool:
        """Whether a kernel as the kernelspec says can be had here: nothing was chosen anew, or has been replaced, meanwhile."""
        wanted = spec.metadata["kernel_provisioner"]["config"]
        same = all(getattr(self, name) == wanted.get(name) for name in ("container", "limits", "warden"))
        return same and not self._changed and self.reusable and self._sources == self._seen_sources()

    async def _make(self, order: Order, news: News) -> None:
        """Have a container, which is not started yet; who let go of it meanwhile finds nothing of it.

        Raises:
            KernelStartFailed: nobody wants it any more, or see ``make``.
        """
        await to_end(self._make_it, order, news)  # else nobody knew of it

    def _make_it(self, order: Order, news: News) -> None:
        container = self._id = make(news.engine, order, self.name)
        if self._news is not news:
            remove_now(container)
            raise KernelStartFailed(STOPPED)

    def _listen(self) -> None:
        """Have the first process of a container that is to start be able to connect."""
        self._sources = self._seen_sources()
        if self.warden:
            ids = Container.model_validate(self.container).ids
            self._warden = Warden(Path(self.warden), ids, self._hear_end, self._look.set)

    async def _fork(self, arguments: list[str], kwargs: Mapping[str, Any]) -> bool:
        """Have the next kernel in the container that there is; whether it was forked."""
        warden, news = self._warden, self._news
        if not self.reusable or warden is None or news is None:
            return False
        self._was_flagged |= self._oom or self._flagged or bool(news.memory_kills(self._id))
        self._begin()
        self._kills.survived(0, news.memory_kills(self._id))
        self._look.clear()
        return await warden.fork(arguments, kwargs["env"], kwargs["cwd"])

    def _begin(self) -> None:
        """Know nothing of a kernel that is to come."""
        self._status, self._kills = None, Kills()
        self._oom = self._flagged = self._unwanted = self._counted = self._clean = False

    def _forget(self) -> None:
        """Know nothing of the container that there was."""
        self._begin()
        self._id, self._pid, self._was_flagged, self._changed = "", 0, False, False

    def _signal(self, signum: int) -> bool:
        """Signal the kernel, without the engine; whether that was possible."""
        return self._warden is not None and self._warden.open and self._warden.signal(signum)

    async def _sweep(self) -> bool:
        """End what runs in the container, the kernel too, but not the container; whether that was possible."""
        if self._warden is not None and self._warden.open and not self._clean:
            self._unwanted |= self._status is None
            places = _IN_MEMORY | Container.model_validate(self.container).memory_places.keys()
            mounted = [identity[0] for identity in self._sources.values() if identity]
            self._clean = await self._warden.sweep(sorted(places), mounted)
        return self.reusable

    def _leave(self) -> None:
        """Have the first process end, if it has no kernel."""
        warden, self._warden = self._warden, None
        if warden is not None:
            warden.close()

    def _hear_end(self, status: int, kills: int) -> None:
        if self._status is None:
            self._counted = True
            self._oom = status == KILLED and not self._unwanted and self._kills.is_exceeded(kills)
            self._end(status)

    def _end(self, status: int) -> None:
        self._status = status
        self._look.set()

    def _seen_sources(self) -> dict[str, tuple[int, int] | None]:
        """Which directories of this machine are mounted: not their paths, which may change, but they themselves."""
        return {inside: _identity(source) for source, inside, _ in self.mounts}


def _identity(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.stat(path)  # noqa: PTH116 - of what a link leads to, as the engine sees it
        return found.st_dev, found.st_ino
    return None
