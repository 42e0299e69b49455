"""Functions of strangers: a plain one is called in a thread, and what it raises harms nobody."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import anyio.to_thread


class CallFailed(Exception):
    """What it raised, in words."""


async def called(call: Any, argument: object) -> Any:  # noqa: ANN401 - a stranger's function, and what it gives
    """What a function gives. It has a task of its own: should it end or cancel that, whoever waits goes on.

    Raises:
        CallFailed: it raised, whatever that was.
    """
    said: Any = None
    raised: BaseException | None = None

    async def ask() -> None:
        nonlocal said, raised
        try:
            said = await _said(call, argument)
        except anyio.get_cancelled_exc_class() as exc:
            raised = exc
            raise
        except BaseException as exc:  # noqa: BLE001 - SystemExit too would end the loop, and all sessions with it
            raised = exc

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
    if raised is not None:
        message = f"{type(raised).__name__}: {raised}".removesuffix(": ")
        raise CallFailed(message) from raised
    return said


async def _said(call: Any, argument: object) -> Any:  # noqa: ANN401 - as above
    """What a function gives: a plain one is called in a thread, which is left behind if nobody waits any more."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004
        return await call(argument)
    said = await anyio.to_thread.run_sync(call, argument, abandon_on_cancel=True)
    return await said if inspect.isawaitable(said) else said
