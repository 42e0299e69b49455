"""Progress of a call: its waiting time, output cursor and partial result, and the task that it may become."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from mcp.types import ElicitRequest, ElicitResult

from kernelexec.config import SHORTEST_TIMEOUT, check_seconds
from kernelexec.mcp.callers import Caller
from kernelexec.results import ExecutionResult, Output, output_text
from kernelexec.text import clean_text

_LINE_CHARS = 200
_LOOKED_AT = 20


@dataclass(frozen=True, slots=True)
class PartialResult:
    """Result of an execution so far, with the outputs that are new to the caller."""

    result: ExecutionResult
    outputs: tuple[Output, ...]
    since: int = 0
    cursor: int = 0
    missed_bytes: int = 0
    queue_position: int = 0
    is_readable: bool = True  #: whether read_output has its output; not so for an outcome that only the journal has


#: Makes a tool's answer from a partial result.
Renderer = Callable[[PartialResult], Awaitable[Any]]


def check_wait(wait: float) -> float:
    """Return the seconds that a call may block; 0 becomes the shortest timeout.

    Raises:
        InvalidTimeout: the value is not a number of seconds.
    """
    return SHORTEST_TIMEOUT if wait == 0 else check_seconds(wait, "wait")


def find_last_line(outputs: Sequence[Output]) -> str:
    """Return the last line that is not blank, at most 200 characters of it."""
    for output in reversed(outputs[-_LOOKED_AT:]):
        tail = output_text([output])[-_LINE_CHARS * 20 :].replace("\r", "\n")
        if lines := [line.strip() for line in tail.split("\n") if line.strip()]:
            return clean_text(lines[-1][:_LINE_CHARS])
    return ""


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
