"""Pending `input()` requests of cells, kept until a call passes them to its client and returns the answer."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import anyio
from mcp.types import ElicitResult

from kernelexec.results import InputRequest

#: The field of a client's form that has the answer.
TEXT = "text"
_PASSWORD = "the server does not ask for passwords over MCP; pass secrets by reference, with --secret"  # noqa: S105 - a sentence


@dataclass(eq=False, slots=True)
class PendingInput:
    """An input request that waits for its answer, with a unique name."""

    request: InputRequest
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    answered: anyio.Event = field(default_factory=anyio.Event)
    text: str | None = None
    reason: str = ""

    def answer(self, text: str | None, action: str) -> None:
        """Set the answer, or the client's action in place of an answer; the first call counts."""
        if not self.answered.is_set():
            self.text, self.reason = text, f"the client's answer was {action}"
            self.answered.set()


class PendingInputs:
    """Pending input requests of all executions, oldest first."""

    def __init__(self) -> None:
        self._pending: list[PendingInput] = []
        self._changed = anyio.Event()

    async def ask(self, request: InputRequest) -> str:
        """Wait for the answer and return it.

        Raises:
            EOFError: there is no answer; the message has the reason.
        """
        if request.password:
            raise EOFError(_PASSWORD)
        pending = PendingInput(request)
        self._pending.append(pending)
        self._changed.set()
        self._changed = anyio.Event()
        try:
            await pending.answered.wait()
        finally:
            self._pending.remove(pending)
        if pending.text is None:
            raise EOFError(pending.reason)
        return pending.text

    def find(self, execution_id: str) -> PendingInput | None:
        """Return an execution's oldest pending input request."""
        waiting = (
            pending
            for pending in self._pending
            if pending.request.execution_id == execution_id and not pending.answered.is_set()
        )
        return next(waiting, None)

    async def wait_for(self, execution_id: str) -> None:
        """Wait until an execution asks for input."""
        while self.find(execution_id) is None:
            await self._changed.wait()

    def accept(self, answer: InputAnswer) -> None:
        """Answer the input request of that name, if it is still pending."""
        for pending in self._pending:
            if (pending.request.execution_id, pending.name) == (answer.execution_id, answer.input_name):
                text = (answer.form.content or {}).get(TEXT) if answer.form.action == "accept" else None
                pending.answer(text if isinstance(text, str) else None, answer.form.action)


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The client's answer to an execution's input request."""

    execution_id: str
    input_name: str
    form: ElicitResult
