"""The outputs of a cell as an iterator, for callers that would otherwise pass a callback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any

import anyio

from kernelexec.config.types import SHORTEST_TIMEOUT
from kernelexec.results import ExecutionResult, Output, Progress


async def iterate_outputs(
    execute: Callable[..., Awaitable[ExecutionResult]],
    wait_for: Callable[..., Coroutine[Any, Any, Progress]],
    on_begin: Callable[[ExecutionResult], object] = lambda _: None,
) -> AsyncGenerator[Output | ExecutionResult, None]:
    """Yield the outputs of a cell as they arrive, then its result; output that a slow caller has missed is in the result.

    Args:
        execute: submits the cell; takes ``wait`` and ``on_output``.
        wait_for: returns the outputs since a cursor.
        on_begin: called when the cell is submitted, with its result so far.
    """
    changed = asyncio.Event()
    with anyio.CancelScope(shield=True):  # a cell that is submitted is known to the caller
        begun = await execute(wait=SHORTEST_TIMEOUT, on_output=lambda _: changed.set())
        on_begin(begun)
    ending = asyncio.ensure_future(wait_for(begun.execution_id))
    ending.add_done_callback(lambda _: changed.set())
    cursor = 0
    try:
        while True:
            changed.clear()
            progress = await wait_for(begun.execution_id, cursor=cursor, wait=SHORTEST_TIMEOUT)
            for output in progress.outputs:
                yield output
            if progress.result is not None:
                yield progress.result
                return
            cursor = progress.cursor
            await changed.wait()
    finally:
        ending.cancel()
