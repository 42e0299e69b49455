"""Repeated tries of a cell: the caller fixes the code between two tries, and the session's variables can be restored."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

import anyio.to_thread

from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.policy.decisions import Approver
from kernelexec.results import Attempt, Attempts, ExecutionResult
from kernelexec.session.cells.cell_run import OnOutput
from kernelexec.session.features.arguments import check_whole_number
from kernelexec.session.features.saved_state.snapshots import VariableSnapshots

#: A function that returns the code of the next try from all tries so far, or None to give up.
Fix = Callable[[Attempts], str | Awaitable[str | None] | None]
Between = Literal["keep", "restore", "restart"]

_BETWEEN = ("keep", "restore", "restart")
RETRIES, RETRIES_MAX = 3, 100


class Retries:
    """The repeated tries of one session's cells; ``execute`` runs one try, and ``restart`` replaces the session's kernels."""

    def __init__(
        self,
        execute: Callable[..., Awaitable[ExecutionResult]],
        restart: Callable[[], Awaitable[None]],
        snapshots: VariableSnapshots,
    ) -> None:
        self._execute = execute
        self._restart = restart
        self._snapshots = snapshots

    async def execute_with_retry(
        self,
        code: str,
        fix: Fix | None = None,
        *,
        max_retries: int = RETRIES,
        between: Between = "keep",
        language: str = "python",
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        approver: Approver | None = None,
    ) -> Attempts:
        """Run a cell until it succeeds, ``max_retries`` times at most, including the first try.

        Args:
            code: the first try's source.
            fix: called after a failure with the attempts so far; returns the next try's source, or None to give up. A plain
                function, which is called in a thread, or a coroutine function. Without it the same code runs again.
            max_retries: the number of all tries, 1 to 100.
            between: the change of the session between two tries: ``keep`` changes nothing, ``restore`` restores the
                variables from a snapshot before the first try, ``restart`` starts an empty kernel.
            language: the language of all tries, as in ``execute``.
            timeout: the timeout of each try.
            on_output: called with the outputs of all tries.
            approver: decides about each try.

        Raises:
            InvalidRequest: before anything ran; later too, if ``fix`` returns neither text nor None.
        """
        if fix is not None and not callable(fix):
            raise InvalidRequest(f"fix={fix!r:.100} must be a function of the attempts so far.")
        check_whole_number(max_retries, "max_retries", "the number of all tries", 1, RETRIES_MAX)
        if between not in _BETWEEN:
            near = did_you_mean(str(between), _BETWEEN)
            raise InvalidRequest(f"between={between!r:.100}{near} must be one of {', '.join(_BETWEEN)}.")
        run = partial(self._execute, language=language, timeout=timeout, on_output=on_output, approver=approver)
        before = await self._snapshots.snapshot() if between == "restore" else None
        attempts: list[Attempt] = []
        while True:
            result = await run(code)
            is_other_kernel = bool(attempts and attempts[-1].result.kernel_epoch != result.kernel_epoch)
            restarted = result.state == "lost" or (is_other_kernel and result.state != "restored")
            attempts.append(Attempt(len(attempts) + 1, code, result, restarted))
            report = Attempts(tuple(attempts))
            if result.ok or len(attempts) == max_retries:
                return report
            next_code = code if fix is None else await _call_fix(fix, report)
            if next_code is None:
                return report
            code = next_code
            if between == "restart":
                await self._restart()
            elif before is not None:
                await self._snapshots.restore(before)


async def _call_fix(fix: Fix, attempts: Attempts) -> str | None:
    """Return the next try's code from the caller's function; raise ``InvalidRequest`` if it is neither text nor None."""
    code: Any = fix(attempts) if inspect.iscoroutinefunction(fix) else await anyio.to_thread.run_sync(fix, attempts)
    code = await code if inspect.isawaitable(code) else code
    if code is None or isinstance(code, str):
        return code
    raise InvalidRequest(f"fix returned {code!r:.100}: it must return the source of the next try, or None to give up.")
