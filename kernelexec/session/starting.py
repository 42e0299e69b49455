"""How a session comes by a new kernel: by one that starts, or by another where the place can supply what that one lacked."""

from __future__ import annotations

from collections.abc import Callable

from anyio.abc import TaskGroup

from kernelexec.errors import KernelStartFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Place


async def begin(make: Callable[[], Kernel], place: Place | None, tasks: TaskGroup, check_wanted: Callable[[], None]) -> Kernel:
    """A new kernel that serves. There is one more try if its Python is another one by then.

    Raises:
        KernelStartFailed: see ``Kernel.start``.
        Closed: nobody wants it any more.
    """
    if place is not None:
        await place.prepare()
        check_wanted()
    python = place and place.python
    kernel = make()
    try:
        await kernel.start(tasks)
    except KernelStartFailed as failure:
        check_wanted()
        if place is None:
            raise
        await place.prepare(failure)
        check_wanted()
        if place.python == python:
            raise
        kernel = make()
        await kernel.start(tasks)
    return kernel
