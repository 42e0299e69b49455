"""What cells ask by `input()`: kept until a call of theirs takes it to a client, and brings the answer back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import anyio

from kernelexec.results import InputRequest

_PASSWORD = "passwords are not asked for over MCP: pass secrets by reference, with --secret"  # noqa: S105 - a sentence


@dataclass(eq=False, slots=True)
class Pending:
    """A question that waits for its answer, under a name of its own."""

    request: InputRequest
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    given: anyio.Event = field(default_factory=anyio.Event)
    text: str | None = None
    why: str = ""

    def answer(self, text: str | None, why: str = "") -> None:
        """Answer it; the first answer counts. None is none, and why."""
        if not self.given.is_set():
            self.text, self.why = text, why
            self.given.set()


class Inputs:
    """The questions of all executions that wait, the oldest first."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []
        self._news = anyio.Event()

    async def ask(self, request: InputRequest) -> str:
        """Wait for the answer.

        Raises:
            EOFError: there is none, with the reason.
        """
        if request.password:
            raise EOFError(_PASSWORD)
        pending = Pending(request)
        self._pending.append(pending)
        self._news.set()
        self._news = anyio.Event()
        try:
            await pending.given.wait()
        finally:
            self._pending.remove(pending)
        if pending.text is None:
            raise EOFError(pending.why)
        return pending.text

    def of(self, execution_id: str) -> Pending | None:
        """The question of an execution that waits the longest for its answer."""
        waiting = (one for one in self._pending if one.request.execution_id == execution_id and not one.given.is_set())
        return next(waiting, None)

    async def asked(self, execution_id: str) -> None:
        """Return once an execution asks something."""
        while self.of(execution_id) is None:
            await self._news.wait()

    def answer(self, execution_id: str, name: str, text: str | None, why: str) -> None:
        """Answer the question of that name, if it still waits."""
        for one in self._pending:
            if (one.request.execution_id, one.name) == (execution_id, name):
                one.answer(text, why)
