"""Calls of users' functions: a plain one is called in a thread, and its exceptions end no task of this package."""

from __future__ import annotations

import inspect
from typing import Any

import anyio
import anyio.to_thread


class CallFailed(Exception):
    """A user's function raised an exception; the message is its text."""


async def called(call: Any, argument: object) -> Any:  # noqa: ANN401 - a user's function and its result
    """Return the result of a function, which has a task of its own: should it end or cancel that, the caller goes on.

    Raises:
        CallFailed: it raised an exception.
    """
    result: Any = None
    raised: BaseException | None = None

    async def run() -> None:
        nonlocal result, raised
        try:
            result = await _call(call, argument)
        except anyio.get_cancelled_exc_class() as exc:
            raised = exc
            raise
        except BaseException as exc:  # noqa: BLE001 - SystemExit too would end the loop, and all sessions with it
            raised = exc

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if raised is not None:
        message = f"{type(raised).__name__}: {raised}".removesuffix(": ")
        raise CallFailed(message) from raised
    return result


async def _call(call: Any, argument: object) -> Any:  # noqa: ANN401 - as above
    """Return the result of a function; a plain one is called in a thread, which is abandoned if the caller is cancelled."""
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None)):  # noqa: B004
        return await call(argument)
    result = await anyio.to_thread.run_sync(call, argument, abandon_on_cancel=True)
    return await result if inspect.isawaitable(result) else result
