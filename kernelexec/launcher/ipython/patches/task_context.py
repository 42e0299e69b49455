"""Tasks of earlier cells, whose output belongs to the cell that wakes them.

- Checked for: ipykernel 7.4.0, CPython 3.11 to 3.14.
- Gain: a cell that puts work into the queue of an earlier cell's task has that task's output.
- Obsolete when: ``test_a_task_keeps_its_first_cell``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any

from ipykernel.ipkernel import IPythonKernel


def follow_wakers(kernel: IPythonKernel, loop: asyncio.AbstractEventLoop) -> None:
    """Move a task to the newest cell when that cell's code schedules it; one that a timer or a file wakes stays.

    ipykernel finds the cell of a task's output in the task's context, which it has from the cell that created it.
    """
    stream: Any = sys.stdout
    variable: ContextVar[Any] = stream._parent_header  # noqa: SLF001 - ipykernel has no other
    variables = _cell_variables(kernel)
    call_soon = loop.call_soon

    def call_soon_in_cell(callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        if context is not None:
            cell = variable.get(None)
            if cell is not context.get(variable) and cell is stream._parent_header_global:  # noqa: SLF001 - as above
                with suppress(RuntimeError):  # the context is in use
                    context.run(_set, [(item, item.get()) for item in variables])
        return call_soon(callback, *args, context=context)

    loop.call_soon = call_soon_in_cell  # type: ignore[assignment, method-assign]


def _set(values: list[tuple[ContextVar[Any], Any]]) -> None:
    for variable, value in values:
        variable.set(value)


def _cell_variables(kernel: IPythonKernel) -> list[ContextVar[Any]]:
    shell: Any = kernel.shell
    holders = (kernel, shell, shell.displayhook, shell.display_pub, sys.stdout, sys.stderr)
    return [value for holder in holders for value in vars(holder).values() if isinstance(value, ContextVar)]
