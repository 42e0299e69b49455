"""The inspection of a session: variables, Python environment, completions and documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import anyio

from kernelexec import cells
from kernelexec.config import check_seconds
from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.kernel import Kernel
from kernelexec.launcher import protocol
from kernelexec.results import CodeStatus, Completion, PythonEnvironment, Variables
from kernelexec.results.variables import VARIABLES_MAX
from kernelexec.session.context import SessionContext
from kernelexec.text import clean_text, cut_middle

#: The seconds that an inspection waits for the kernel's answer.
INSPECTION_SECONDS = 4.0
_TEXT_BYTES = 64 * 1024
_INDENT_MAX = 1000
_NO_ANSWER_REASON = "the kernel may hold the interpreter's lock in C code, or the answer takes too long"


class Inspection:
    """The inspection of one session.

    No inspection starts a kernel: without a living kernel ``KernelNotAnswering`` is raised.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    @property
    def connection_file(self) -> Path | None:
        """The connection file by which any Jupyter client can attach to the living kernel; None without a living kernel.

        Each kernel has another file. Access to the file is access to the kernel: it is private to this user.
        """
        kernel = self._context.kernels.python.kernel
        return kernel.connection_file if kernel is not None and kernel.alive else None

    async def variables(
        self, *, names: Iterable[str] | None = None, limit: int = VARIABLES_MAX, wait: float = INSPECTION_SECONDS
    ) -> Variables:
        """Return the user's variables, also while a cell runs, without running the user's code.

        Args:
            names: the variables to return, as far as they exist; all by default.
            limit: the number of variables at most, in the order of their names, 1000 by default and at most.
            wait: seconds that this call blocks at most.

        Raises:
            InvalidRequest, InvalidTimeout, Closed: nothing was sent to the kernel.
            KernelNotAnswering: no kernel lives, or it does not answer in time.
        """
        timeout = check_seconds(wait, "wait")
        content: dict[str, Any] = {"names": _check_names(names), "limit": _check_limit(limit)}
        return Variables.from_reply(await self._request("control", protocol.VARIABLES_REQUEST, content, timeout), limit)

    async def environment(self, *, wait: float = INSPECTION_SECONDS) -> PythonEnvironment:
        """Return the Python, packages and programs of cells, also while a cell runs, without running the user's code.

        Raises:
            InvalidTimeout, Closed: nothing was sent to the kernel.
            KernelNotAnswering: see ``variables``.
        """
        reply = await self._request("control", protocol.ENVIRONMENT_REQUEST, {}, check_seconds(wait, "wait"))
        return PythonEnvironment.from_reply(reply)

    async def complete(self, code: str, cursor: int | None = None, *, wait: float = INSPECTION_SECONDS) -> Completion:
        """Return the kernel's completions at ``cursor`` (in characters, the end by default), after a running cell.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, Closed: nothing was sent to the kernel.
            KernelNotAnswering: no kernel lives, or the cell or the kernel's answer takes more than ``wait`` seconds.
        """
        position = self._check_cursor(code, cursor)
        reply = await self._request_idle("complete_request", {"code": code, "cursor_pos": position}, wait)
        return Completion.from_reply(reply, code, position)

    async def inspect(
        self, code: str, cursor: int | None = None, *, detail: int = 0, wait: float = INSPECTION_SECONDS
    ) -> str | None:
        """Return the documentation of the name at ``cursor``, with ``detail=1`` its source too; None if there is none.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, Closed: nothing was sent to the kernel.
            KernelNotAnswering: see ``complete``.
        """
        if detail not in (0, 1):
            message = f"detail={detail!r} must be 0, or 1 for the source too."
            raise InvalidRequest(message)
        content = {"code": code, "cursor_pos": self._check_cursor(code, cursor), "detail_level": int(detail)}
        reply = await self._request_idle("inspect_request", content, wait)
        bundle = reply.get("data")
        text = bundle.get("text/plain") if isinstance(bundle, dict) else None
        return cut_middle(clean_text(text), _TEXT_BYTES) if reply.get("found") is True and isinstance(text, str) else None

    async def is_complete(self, code: str, *, wait: float = INSPECTION_SECONDS) -> tuple[CodeStatus, str]:
        """Return whether code is complete, and for incomplete code the indentation of the next line.

        Raises:
            InvalidCode, InvalidTimeout, Closed: nothing was sent to the kernel.
            KernelNotAnswering: see ``complete``.
        """
        self._check_cursor(code, None)
        reply = await self._request_idle("is_complete_request", {"code": code}, wait)
        status, indent = reply.get("status"), reply.get("indent")
        is_blank = isinstance(indent, str) and len(indent) <= _INDENT_MAX and not indent.strip()
        return next((code_status for code_status in get_args(CodeStatus) if code_status == status), "unknown"), str(
            indent
        ) if is_blank else ""

    def _check_cursor(self, code: object, cursor: object) -> int:
        if code != "":
            limit_bytes = self._context.config.capacity.code_bytes
            cells.check(code, limit_bytes=limit_bytes, label="stdin" if _is_blank(code) else "code")
        length = len(str(code))
        if cursor is None:
            return length
        if isinstance(cursor, bool) or not isinstance(cursor, int) or not 0 <= cursor <= length:
            message = f"cursor={cursor!r} must be a position in the code, from 0 to {length}."
            raise InvalidRequest(message)
        return cursor

    async def _request_idle(self, msg_type: str, content: dict[str, Any], wait: float) -> dict[str, Any]:
        """Send a request on the shell channel after a running cell, so that requests do not pile up in a busy kernel."""
        timeout, queue = check_seconds(wait, "wait"), self._context.queue
        end = anyio.current_time() + timeout
        self._get_living_kernel()
        with anyio.move_on_after(timeout):
            while queue.first is not None:
                await queue.first.done.wait()
        if queue.first is not None:
            message = f"Session {self._context.name!r} is busy: a cell runs, and the kernel answers once it has ended."
            raise KernelNotAnswering(message)
        return await self._request("shell", msg_type, content, max(0.0, end - anyio.current_time()))

    async def _request(self, channel: str, msg_type: str, content: dict[str, Any], timeout: float) -> dict[str, Any]:
        kernel = self._get_living_kernel()
        reply = await kernel.client.request(channel, msg_type, content, patience=timeout)
        if reply is None:
            self._get_living_kernel()
            message = f"The kernel of session {self._context.name!r} did not answer in time: {_NO_ANSWER_REASON}."
            raise KernelNotAnswering(message)
        return reply

    def _get_living_kernel(self) -> Kernel:
        self._context.scope.check_open()
        kernel = self._context.kernels.python.kernel
        if kernel is None or not kernel.alive:
            message = (
                f"Session {self._context.name!r} has no living kernel: its state is gone, and the next cell starts a new one."
            )
            raise KernelNotAnswering(message)
        return kernel


def _is_blank(code: object) -> bool:
    return isinstance(code, str) and not code.strip()


def _check_names(names: object) -> list[str] | None:
    if names is None:
        return None
    texts = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else None
    if texts is None or len(texts) > VARIABLES_MAX or not all(isinstance(name, str) for name in texts):
        message = f"names={names!r:.200} must be a list of names, {VARIABLES_MAX} at most."
        raise InvalidRequest(message)
    return [clean_text(name) for name in texts]


def _check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= VARIABLES_MAX:
        message = f"limit={limit!r} must be a number of variables, from 1 to {VARIABLES_MAX}."
        raise InvalidRequest(message)
    return limit
