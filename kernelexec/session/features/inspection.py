"""The inspection of a session: variables, Python environment, completions and documentation, and prompts for its model."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, get_args

import anyio

from kernelexec import cells
from kernelexec.config import check_seconds
from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.launcher import protocol
from kernelexec.results import CodeStatus, Completion, PythonEnvironment, Variables, strip_ansi
from kernelexec.results.session_contents import VARIABLES_MAX
from kernelexec.session.context import SessionContext, check_names, check_whole_number
from kernelexec.text import clean_text, cut_middle

#: The seconds that an inspection waits for the kernel's answer.
INSPECTION_SECONDS = 4.0
_TEXT_BYTES = 64 * 1024
#: How much of a documentation is read, with its colours.
_READ_CHARS = 1024 * 1024
_INDENT_MAX = 1000


class Inspection:
    """The inspection of a session. Inspections start no kernel: without a living kernel ``KernelNotAnswering`` is raised.

    The prompts for the session's model are also written without a living kernel.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context

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
        check_whole_number(limit, "limit", "a number of variables", 1, VARIABLES_MAX)
        wanted = None if names is None else [clean_text(name) for name in check_names(names, VARIABLES_MAX)]
        content = {"names": wanted, "limit": limit}
        return Variables.from_reply(await self._context.request("control", protocol.VARIABLES_REQUEST, content, timeout), limit)

    async def environment(self, *, wait: float = INSPECTION_SECONDS) -> PythonEnvironment:
        """Return the Python, packages and programs of cells, also while a cell runs, without running the user's code.

        Errors: see ``variables``.
        """
        reply = await self._context.request("control", protocol.ENVIRONMENT_REQUEST, {}, check_seconds(wait, "wait"))
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

        Errors: see ``complete``.
        """
        if detail not in (0, 1):
            raise InvalidRequest(f"detail={detail!r} must be 0, or 1 for the source too.")
        content = {"code": code, "cursor_pos": self._check_cursor(code, cursor), "detail_level": int(detail)}
        reply = await self._request_idle("inspect_request", content, wait)
        bundle = reply.get("data")
        text = bundle.get("text/plain") if isinstance(bundle, dict) else None
        if reply.get("found") is not True or not isinstance(text, str):
            return None
        return cut_middle(clean_text(strip_ansi(text[:_READ_CHARS])), _TEXT_BYTES)

    async def is_complete(self, code: str, *, wait: float = INSPECTION_SECONDS) -> tuple[CodeStatus, str]:
        """Return whether code is complete, and for incomplete code the indentation of the next line.

        Errors: see ``complete``.
        """
        self._check_cursor(code, None)
        reply = await self._request_idle("is_complete_request", {"code": code}, wait)
        status, indent = reply.get("status"), reply.get("indent")
        is_blank = isinstance(indent, str) and len(indent) <= _INDENT_MAX and not indent.strip()
        known_statuses: tuple[CodeStatus, ...] = get_args(CodeStatus)
        return next((known for known in known_statuses if known == status), "unknown"), str(indent) if is_blank else ""

    async def guidance(self, *, requirements: bool = False) -> str:
        """Return text for a system prompt: the session's directories, packages, network, limits, prefix and rules.

        With ``requirements`` the text asks the model for a list of packages next to the files. Without a living kernel the
        text omits the facts that only a kernel knows.

        Raises:
            Closed: the session is closed.
        """
        from kernelexec.session.model_prompts import PromptContext, write_guidance  # noqa: PLC0415 - few sessions have a prompt

        context = self._context
        context.scope.check_open()
        environment: PythonEnvironment | None = None
        with suppress(KernelNotAnswering):
            environment = await self.environment()
        config, backend = context.config, context.kernels.backend
        surroundings = PromptContext(
            config,
            backend.cwd,
            environment,
            tuple(context.to_kernel_path(path.path) for path in config.context_paths),
            backend.memory_bytes,
            backend.cpus,
        )
        return context.masking.mask_text(write_guidance(surroundings, requirements=requirements))

    async def debugging(self, execution_id: str | None = None) -> str:
        """Return a prompt in five steps for fixing a failed cell: its code, its output, the known facts about the cause.

        Args:
            execution_id: the failed cell; the newest by default.

        Raises:
            UnknownExecution: no execution with that id is remembered.
            InvalidRequest: the named cell has not failed, or no cell has failed.
        """
        from kernelexec.session.model_prompts import write_debug_prompt  # noqa: PLC0415 - as above

        queue = self._context.queue
        ids = reversed(queue.list_ids()) if execution_id is None else (execution_id,)
        for run in map(queue.find, ids):
            result = queue.get_result(run)
            if result is not None and result.status in ("error", "aborted"):
                return write_debug_prompt(run.masked_cell.source, result)
        raise InvalidRequest(
            "No cell of this session has failed." if execution_id is None else f"execution_id={execution_id!r} has not failed."
        )

    def _check_cursor(self, code: object, cursor: object) -> int:
        if code != "":
            limit_bytes, is_blank = self._context.config.capacity.code_bytes, isinstance(code, str) and not code.strip()
            cells.check(code, limit_bytes=limit_bytes, label="stdin" if is_blank else "code")
        length = len(str(code))
        return length if cursor is None else check_whole_number(cursor, "cursor", "a position in the code", 0, length)

    async def _request_idle(self, msg_type: str, content: dict[str, Any], wait: float) -> dict[str, Any]:
        """Send a request on the shell channel after a running cell. Otherwise requests would pile up in a busy kernel."""
        timeout, queue = check_seconds(wait, "wait"), self._context.queue
        end = anyio.current_time() + timeout
        self._context.get_living_kernel()
        with anyio.move_on_after(timeout):
            while queue.first is not None:
                await queue.first.done.wait()
        if queue.first is not None:
            message = f"Session {self._context.name!r} is busy: a cell runs, and the kernel answers once it has ended."
            raise KernelNotAnswering(message)
        return await self._context.request("shell", msg_type, content, max(0.0, end - anyio.current_time()))
