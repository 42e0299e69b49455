"""Whether a kernel answers after a cell, and has said all of it."""

from __future__ import annotations

import anyio

from kernelexec.kernel.client import Link
from kernelexec.kernel.execution import Execution

#: How long after a reply what was published before it may take to come on the other channel.
_QUIET_SECONDS = 0.2
#: So many answers without output between them mean that a cell has said all; how long that may take at most.
_SILENT_ROUNDS, _SETTLE_SECONDS = 2, 10.0


async def settled(link: Link, execution: Execution, patience: float) -> bool:
    """Whether the kernel answers after a cell. One without our launcher is asked until nothing of the cell comes meanwhile.

    Some kernels (deno 2.9) say that a cell has ended before they have published all of it.
    """
    if not execution.lingers:
        return await link.answers(patience)
    answered = False
    with anyio.move_on_after(_SETTLE_SECONDS):
        heard, silent = execution.heard, 0
        while silent < _SILENT_ROUNDS:
            link.quiet.clear()
            if not await link.answers(patience):
                break
            answered = True
            with anyio.move_on_after(_QUIET_SECONDS):
                await link.quiet.wait()
            silent = silent + 1 if heard == execution.heard else 0
            heard = execution.heard
    return answered
