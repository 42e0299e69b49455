"""Get a kernel for a session: a warm one, a new one, or a retry after the backend fixed a missing part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from kernelexec.errors import KernelStartFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Place

#: The seconds that a warm kernel may take to answer; after that a new one is started.
_ANSWER_SECONDS = 2.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ready:
    """A warm kernel for a session, and the changes of its environment since it started; or the reasons why there is none."""

    kernel: Kernel | None = None
    changes: Mapping[str, str | None] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    async def claim(self, cwd: str, place: Place | None) -> Kernel | None:
        """Move the kernel to a directory, and give it the secrets; end it and return None where it does not answer.

        Raises:
            InvalidConfig: a secret is not available.
        """
        if self.kernel is None:
            return None
        entered = False
        try:
            changes = self.changes
            if place is not None and place.secrets is not None:
                changes = {**changes, **await place.secrets.read()}
                self.kernel.mask(place.secrets)
            entered = await self.kernel.client.enter(cwd, changes, patience=_ANSWER_SECONDS)
        finally:
            if not entered:
                await self.kernel.stop(0.0)
        return self.kernel if entered else None


NOT_READY = Ready()


async def begin(make: Callable[[], Kernel], place: Place | None, tasks: TaskGroup, check_wanted: Callable[[], None]) -> Kernel:
    """Start a kernel; retry twice where its Python is another one by then, or the failure is transient.

    Raises:
        KernelStartFailed, InvalidConfig: see ``Kernel.start``.
        Closed: the session was closed.
    """
    if place is not None:
        await place.prepare()
        check_wanted()
    tries = 0
    while True:
        python, kernel = place and place.python, make()
        tries += 1
        try:
            await kernel.start(tasks)
        except KernelStartFailed as failure:
            check_wanted()
            if place is None or tries == _TRIES:
                raise
            await place.prepare(failure)
            check_wanted()
            if place.python == python and not place.passes(str(failure)):
                raise
        else:
            return kernel
