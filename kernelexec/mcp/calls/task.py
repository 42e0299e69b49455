"""One call whose client lets it be answered with a task: what has to be known of it beside its cell."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
from mcp.types import ElicitRequest, ElicitResult

from kernelexec.mcp.calls.progress import Show

if TYPE_CHECKING:
    from kernelexec.mcp.callers import Caller


@dataclass(slots=True)
class _Question:
    """What a person is asked, until there is an answer."""

    request: ElicitRequest
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: ElicitResult | None = None


class Task:
    """A call of a tool that may become a task: it is one from ``begin`` on.

    Args:
        owner: whose call it is.
        tool: by its name.
    """

    def __init__(self, owner: Caller, tool: str) -> None:
        self.owner = owner
        self.tool = tool
        self.session = ""
        """As the owner calls it."""
        self.execution_id = ""
        """It is the task's id, too."""
        self.created = self.updated = datetime.now(UTC)
        self.cursor = 0
        """Up to where its output has been looked at."""
        self.newest = ""
        """The last line of that."""
        self.cancelled = False
        """Whether that was asked for while it ran."""
        self.show: Show | None = None
        self._questions: dict[str, _Question] = {}
        self._asked = 0

    @property
    def begun(self) -> bool:
        """Whether its client is answered with the task, and not with an outcome."""
        return self.show is not None

    def begin(self, session: str, execution_id: str, show: Show) -> None:
        """Its cell goes on: ``show`` makes the answer when that has ended."""
        self.session, self.execution_id, self.show = session, execution_id, show

    async def ask(self, request: ElicitRequest) -> ElicitResult:
        """What the client answers, whenever it looks at its task and does."""
        self._asked += 1
        key, question = f"question-{self._asked}", _Question(request)
        self._questions[key] = question
        try:
            await question.answered.wait()
        finally:
            del self._questions[key]
        assert question.answer is not None
        return question.answer

    def questions(self) -> dict[str, dict[str, Any]]:
        """What is asked now, as the protocol has it."""
        waiting = {key: one.request for key, one in self._questions.items() if not one.answered.is_set()}
        return {key: one.model_dump(by_alias=True, mode="json", exclude_none=True) for key, one in waiting.items()}

    def answer(self, answers: Mapping[str, ElicitResult]) -> None:
        """Take answers to what is asked now."""
        for key, answer in answers.items():
            self._questions[key].answer = answer
            self._questions[key].answered.set()


#: The task that the call which is answered now may become.
TASK: ContextVar[Task | None] = ContextVar("kernelexec_task", default=None)
