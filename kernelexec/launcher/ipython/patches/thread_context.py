"""Threads with the context of the cell that started them, so that their later output belongs to it too.

- Checked for: ipykernel 7.4.0, CPython 3.11 to 3.14.
- Gain: output of threads is shown under the right cell.
- Obsolete when: ``test_threads_and_pools_do_not_inherit_the_context``.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

from ipykernel.ipkernel import IPythonKernel


def inherit_context(kernel: IPythonKernel) -> None:
    """Pass the cell on to new threads and to the work of thread pools.

    ipykernel finds the cell in the context, and shows output of a thread without one under the newest cell.
    """
    if not getattr(sys.flags, "thread_inherit_context", False):
        _start_threads_in_context()
    _submit_with(_cell_variables(kernel))


def _start_threads_in_context() -> None:
    """Run every new thread in a copy of its starter's context, as Python 3.14 can do itself; there is no hook before."""
    start = threading.Thread.start

    def start_in_context(self: threading.Thread) -> None:
        run, context = self.run, copy_context()
        self.run = lambda: context.run(run)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_in_context  # type: ignore[method-assign]


def _submit_with(variables: list[ContextVar[Any]]) -> None:
    """Take the cell, and nothing else of the context, along with each piece of work: a pool may be older than the cell."""
    submit = ThreadPoolExecutor.submit

    def submit_with_cell(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        context = copy_context()
        values = [(variable, context[variable]) for variable in variables if variable in context]

        def work(*args: Any, **kwargs: Any) -> Any:
            for variable, value in values:
                variable.set(value)
            return fn(*args, **kwargs)

        return submit(self, work, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_with_cell  # type: ignore[assignment, method-assign]


def _cell_variables(kernel: IPythonKernel) -> list[ContextVar[Any]]:
    shell: Any = kernel.shell
    holders = (kernel, shell, shell.displayhook, shell.display_pub, sys.stdout, sys.stderr)
    return [value for holder in holders for value in vars(holder).values() if isinstance(value, ContextVar)]
