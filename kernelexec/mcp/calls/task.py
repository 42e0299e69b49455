"""The state of one call whose client accepts a task as the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime

from mcp.types import ElicitRequest, ElicitResult

from kernelexec.mcp.callers import Caller
from kernelexec.mcp.calls.progress import Renderer


@dataclass(eq=False)
class Task:
    """A tool call that may become a task; ``start`` makes it one."""

    owner: Caller
    tool: str
    session: str = ""
    """The owner's name of the session."""
    execution_id: str = ""
    """Also the task's id."""
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    cursor: int = 0
    """End of the output that status requests have read."""
    last_line: str = ""
    """The last line of that output."""
    is_cancelled: bool = False
    """Whether the client cancelled it while it ran."""
    render: Renderer | None = None
    _questions: dict[str, tuple[ElicitRequest, asyncio.Future[ElicitResult]]] = field(default_factory=dict)
    _question_count: int = 0

    @property
    def is_started(self) -> bool:
        """Whether the call is answered with a task and not with a result."""
        return self.render is not None

    def start(self, session: str, execution_id: str, render: Renderer) -> None:
        """Make the call a task; ``render`` makes its answer once the cell has ended."""
        self.session, self.execution_id, self.render = session, execution_id, render

    async def ask(self, form: ElicitRequest) -> ElicitResult:
        """Ask the client, and wait until it polls the task and answers."""
        self._question_count += 1
        key = f"question-{self._question_count}"
        answer: asyncio.Future[ElicitResult] = asyncio.get_running_loop().create_future()
        self._questions[key] = form, answer
        try:
            return await answer
        finally:
            del self._questions[key]

    def list_questions(self) -> dict[str, ElicitRequest]:
        """Return the open questions."""
        return {key: form for key, (form, answer) in self._questions.items() if not answer.done()}

    def answer(self, answers: Mapping[str, ElicitResult]) -> None:
        """Accept answers to open questions."""
        for key, answer in answers.items():
            self._questions[key][1].set_result(answer)


#: The task that the current call may become.
TASK: ContextVar[Task | None] = ContextVar("kernelexec_task", default=None)
