"""Prompts for a session's model: the environment of its code, and the debugging of a failed cell."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.session.context import SessionContext
from kernelexec.session.features.inspection import Inspection

if TYPE_CHECKING:
    from kernelexec.results import PythonEnvironment


class SessionPrompts:
    """The prompts of one session."""

    def __init__(self, context: SessionContext, inspection: Inspection) -> None:
        self._context = context
        self._inspection = inspection

    async def guidance(self, *, requirements: bool = False) -> str:
        """Return text for a system prompt: the session's directories, packages, network, limits, prefix and rules.

        With ``requirements`` the text asks the model for a list of packages next to the files. Without a living kernel the
        text omits the facts that only a kernel knows.

        Raises:
            Closed: the session is closed.
        """
        from kernelexec.model_prompts import PromptContext, write_guidance  # noqa: PLC0415 - few sessions have a prompt

        context = self._context
        context.scope.check_open()
        environment: PythonEnvironment | None = None
        with suppress(KernelNotAnswering):
            environment = await self._inspection.environment()
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
        from kernelexec.model_prompts import write_debug_prompt  # noqa: PLC0415 - as above

        self._context.scope.check_caller()
        queue = self._context.queue
        ids = reversed(queue.list_ids()) if execution_id is None else (execution_id,)
        for run in map(queue.find, ids):
            result = queue.get_result(run)
            if result is not None and result.status in ("error", "aborted"):
                return write_debug_prompt(run.masked_cell.source, result)
        raise InvalidRequest(
            "No cell of this session has failed." if execution_id is None else f"execution_id={execution_id!r} has not failed."
        )
