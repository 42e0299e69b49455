"""State of one call whose client accepts a task as the answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
from mcp.types import ElicitRequest, ElicitResult

from kernelexec.mcp.calls.progress import Renderer

if TYPE_CHECKING:
    from kernelexec.mcp.callers import Caller


@dataclass(slots=True)
class _Question:
    """A question to the client, and its answer."""

    request: ElicitRequest
    is_answered: anyio.Event = field(default_factory=anyio.Event)
    answer: ElicitResult | None = None


class Task:
    """A tool call that may become a task; ``start`` makes it one.

    Args:
        owner: the caller.
        tool: name of the tool.
    """

    def __init__(self, owner: Caller, tool: str) -> None:
        self.owner = owner
        self.tool = tool
        self.session = ""
        """The owner's name of the session."""
        self.execution_id = ""
        """Also the task's id."""
        self.created = self.updated = datetime.now(UTC)
        self.cursor = 0
        """End of the output that status requests have read."""
        self.last_line = ""
        """The last line of that output."""
        self.is_cancelled = False
        """Whether the client cancelled it while it ran."""
        self.render: Renderer | None = None
        self._questions: dict[str, _Question] = {}
        self._question_count = 0

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
        key, question = f"question-{self._question_count}", _Question(form)
        self._questions[key] = question
        try:
            await question.is_answered.wait()
        finally:
            del self._questions[key]
        assert question.answer is not None
        return question.answer

    def list_questions(self) -> dict[str, dict[str, Any]]:
        """Return the open questions in the form of the protocol."""
        forms = {key: question.request for key, question in self._questions.items() if not question.is_answered.is_set()}
        return {key: form.model_dump(by_alias=True, mode="json", exclude_none=True) for key, form in forms.items()}

    def answer(self, answers: Mapping[str, ElicitResult]) -> None:
        """Accept answers to open questions."""
        for key, answer in answers.items():
            self._questions[key].answer = answer
            self._questions[key].is_answered.set()


#: The task that the current call may become.
TASK: ContextVar[Task | None] = ContextVar("kernelexec_task", default=None)
