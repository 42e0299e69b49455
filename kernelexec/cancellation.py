"""Calls that run to their end although the task that waits for them is cancelled, once or several times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def await_to_end(call: Awaitable[T]) -> T:
    """Await a call that acquires or releases something; if this task is cancelled, that is raised after the call's end.

    A shielded scope of anyio stops cancellation by anyio only, not that of the task itself, as by ``asyncio.wait_for``.

    Raises:
        asyncio.CancelledError: this task was cancelled meanwhile; the call's outcome is dropped.
        Exception: the call's own.
    """
    calling = asyncio.ensure_future(call)
    cancellation: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not calling.done():
            try:
                await asyncio.wait([calling])
            except asyncio.CancelledError as exc:
                cancellation = exc
    if cancellation is not None:
        if not calling.cancelled():
            calling.exception()  # asyncio would log it as never retrieved
        raise cancellation
    return calling.result()
