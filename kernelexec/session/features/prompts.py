"""Prompts for a session's model: where its code runs, and how to mend a cell that failed."""

from __future__ import annotations

from contextlib import suppress

from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.prompts import Surroundings, debugging, guidance
from kernelexec.results import PythonEnvironment
from kernelexec.session.cells.executions import Executions
from kernelexec.session.context import SessionContext
from kernelexec.session.features.inspection import Inspection


class SessionPrompts:
    """The prompts of one session."""

    def __init__(self, context: SessionContext, executions: Executions, inspection: Inspection) -> None:
        self._context = context
        self._executions = executions
        self._inspection = inspection

    async def guidance(self, *, requirements: bool = False) -> str:
        """Return text for a system prompt: the session's directories, packages, network, limits, prefix and rules.

        With ``requirements`` it asks the model for a list of packages beside the files. Without a living kernel, what only a
        kernel knows is left out.

        Raises:
            Closed: the session is.
        """
        context = self._context
        context.scope.check_open()
        environment: PythonEnvironment | None = None
        with suppress(KernelNotAnswering):
            environment = await self._inspection.environment()
        config, backend = context.config, context.kernels.place
        surroundings = Surroundings(
            config,
            backend.cwd,
            environment,
            tuple(context.inside(path.path) for path in config.context_paths),
            backend.memory_bytes,
            backend.cpus,
        )
        return context.masking.text(guidance(surroundings, requirements=requirements))

    async def debugging(self, execution_id: str | None = None) -> str:
        """Return a prompt in five steps for mending a failed cell: its code, its output, the known facts about the cause.

        Args:
            execution_id: the cell; by default the newest that failed.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidRequest: none has failed, or the one named has not.
        """
        self._context.scope.check_here()
        queue = self._context.queue
        ids = reversed(queue.ids()) if execution_id is None else (execution_id,)
        for turn in map(self._executions.find, ids):
            result = queue.result(turn)
            if result is not None and result.status in ("error", "aborted"):
                return debugging(turn.shown.source, result)
        message = (
            "No cell of this session has failed." if execution_id is None else f"execution_id={execution_id!r} has not failed."
        )
        raise InvalidRequest(message)
