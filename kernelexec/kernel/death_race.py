"""Waiting for something that a dead kernel will never do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from kernelexec.errors import KernelConnectionFailed


async def until_death(died: asyncio.Event, wait: Callable[[], Awaitable[Any]]) -> KernelConnectionFailed | None:
    """Wait, but not longer than until ``died``; the failure of the connection, if that was the end of it."""
    failure: KernelConnectionFailed | None = None
    async with anyio.create_task_group() as race:

        async def mind_death() -> None:
            await died.wait()
            race.cancel_scope.cancel()

        race.start_soon(mind_death)
        try:
            await wait()
        except KernelConnectionFailed as exc:
            failure = exc
        race.cancel_scope.cancel()
    return failure
