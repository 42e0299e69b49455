"""The word of a living owner, for kernels that cannot see whether it lives."""

from __future__ import annotations

import asyncio

import anyio

from kernelexec.kernel.client import Link
from kernelexec.launcher import protocol

#: How long a kernel goes on without a word. It is given three times within that, so that two may be lost.
SECONDS = 60.0


async def keep(link: Link, died: asyncio.Event) -> None:
    """Renew a kernel's lease until it died: for all kernels at the same moments, which wakes this process once for all."""
    beat, loop = SECONDS / 3, asyncio.get_running_loop()
    while not died.is_set():
        link.tell(protocol.LEASE_REQUEST, seconds=SECONDS)
        with anyio.move_on_after(beat - loop.time() % beat):
            await died.wait()
