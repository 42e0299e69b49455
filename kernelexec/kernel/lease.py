"""The lease of a kernel that cannot see whether its owner lives: the owner renews it by control messages."""

from __future__ import annotations

import asyncio

import anyio

from kernelexec.kernel.client import KernelClient
from kernelexec.launcher import protocol

#: How long a kernel lives without a renewal; three are sent in that time, so that two may be lost.
SECONDS = 60.0


async def renew_lease(client: KernelClient, died: asyncio.Event) -> None:
    """Renew a lease until the kernel died; all kernels are renewed at the same moments, which wakes this process once."""
    beat, loop = SECONDS / 3, asyncio.get_running_loop()
    while not died.is_set():
        client.send_nowait(protocol.LEASE_REQUEST, seconds=SECONDS)
        with anyio.move_on_after(beat - loop.time() % beat):
            await died.wait()
