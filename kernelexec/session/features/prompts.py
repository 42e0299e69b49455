"""What a session's model is told: where its code runs, and how to mend what failed."""

from __future__ import annotations

from contextlib import suppress

from kernelexec.config import Config
from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.prompts import Surroundings, debugging, guidance
from kernelexec.results import PythonEnvironment
from kernelexec.session.cells.executions import Executions
from kernelexec.session.cells.masking import Secrecy
from kernelexec.session.features.inspection import Lookout
from kernelexec.session.kernels.languages import Kernels


class Guiding(Executions, Lookout, Secrecy):
    """The part of a session that makes prompts."""

    _config: Config
    _kernels: Kernels

    async def guidance(self, *, requirements: bool = False) -> str:
        """Text for a system prompt, made of the session as it is: its place, packages, network, limits, prefix and rules.

        With ``requirements`` a list of packages is asked for beside what is handed over. Where no kernel lives, what only one
        knows is left out.

        Raises:
            Closed: the session is.
        """
        self.life.check_open()
        environment: PythonEnvironment | None = None
        with suppress(KernelNotAnswering):
            environment = await self.environment()
        place = self._kernels.place
        about = Surroundings(
            self._config,
            place.cwd,
            environment,
            tuple(place.inside(str(context.path)) for context in self._config.context_paths),
            place.memory_bytes,
            place.cpus,
        )
        return self.mask(guidance(about, requirements=requirements))

    async def debugging(self, execution_id: str | None = None) -> str:
        """A prompt in five steps for a model that is to mend a failed cell: its code, its output, what is known of the cause.

        Args:
            execution_id: which one; by default the newest that failed.

        Raises:
            UnknownExecution: no execution of that id is remembered.
            InvalidRequest: none has failed, or the one named has not.
        """
        self.life.check_here()
        ids = reversed(self._queue.ids()) if execution_id is None else (execution_id,)
        for turn in map(self._find, ids):
            result = self._queue.result(turn)
            if result is not None and result.status in ("error", "aborted"):
                return debugging(turn.shown.source, result)
        message = (
            "No cell of this session has failed." if execution_id is None else f"execution_id={execution_id!r} has not failed."
        )
        raise InvalidRequest(message)
