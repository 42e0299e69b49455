"""How a session comes by a new kernel: an idle one, one that starts, or another where the place has what that one lacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from kernelexec.errors import KernelStartFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Place

#: How long an idle kernel may take to answer, in seconds: else a new one is started.
_ANSWER_SECONDS = 2.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Ready:
    """An idle kernel that a session gets as its first one, how its environment differs by now; or why it gets none."""

    kernel: Kernel | None = None
    changes: Mapping[str, str | None] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    async def entered(self, cwd: str, place: Place | None) -> Kernel | None:
        """The kernel, at home in a directory and told the secrets; None, and its end, where it does not answer.

        Raises:
            InvalidConfig: a secret cannot be had.
        """
        if self.kernel is None:
            return None
        entered = False
        try:
            changes = self.changes
            if place is not None and place.secrets is not None:
                changes = {**changes, **await place.secrets.read()}
                self.kernel.hide(place.secrets)
            entered = await self.kernel.enter(cwd, changes, patience=_ANSWER_SECONDS)
        finally:
            if not entered:
                await self.kernel.stop(0.0)
        return self.kernel if entered else None


NOT_READY = Ready()


async def begin(make: Callable[[], Kernel], place: Place | None, tasks: TaskGroup, check_wanted: Callable[[], None]) -> Kernel:
    """A new kernel that serves. There are two more tries while its Python is another one by then, or what failed may pass.

    Raises:
        KernelStartFailed, InvalidConfig: see ``Kernel.start``.
        Closed: nobody wants it any more.
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
