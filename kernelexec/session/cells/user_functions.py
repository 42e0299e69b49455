"""Calls of users' functions. A plain function runs in a thread, and its exceptions end no task of this package."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import anyio

from kernelexec.cancellation import call_in_own_thread


class CallbackError(Exception):
    """An exception of a user's function, with its text as the message."""


async def call_user_function(function: Any, argument: object) -> Any:  # noqa: ANN401 - a user's function and its result
    """Call a function in a task of its own, which it may cancel; raise ``CallbackError`` if it raises an exception."""
    result: Any = None
    raised: BaseException | None = None

    async def run() -> None:
        nonlocal result, raised
        try:
            result = await _call(function, argument)
        except anyio.get_cancelled_exc_class() as exc:
            raised = exc
            raise
        except BaseException as exc:  # noqa: BLE001 - also SystemExit, which would end the event loop with all sessions
            raised = exc

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if raised is not None:
        message = f"{type(raised).__name__}: {raised}".removesuffix(": ")
        raise CallbackError(message) from raised
    return result


async def _call(function: Any, argument: object) -> Any:  # noqa: ANN401 - as above
    """Call a coroutine function here, a plain function in a thread, which is abandoned if the caller is cancelled."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(argument)
    result = await call_in_own_thread(partial(function, argument))
    return await result if inspect.isawaitable(result) else result
