"""A call's client as who is asked, in both eras of the protocol: whether a cell may run, and what it asks by `input()`.

Until 2025 a server asked its client while a call ran. Since 2026 a call answers that it needs input, and is sent again with
that: so a cell that waits for approval is refused the first time, and the answer counts for that very cell only; one that runs
and asks goes on waiting, and the call that comes again is known by the question, whatever else it says. A call that has become
a task by then has no answer any more: the task asks, and the cell waits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastmcp import Context
from fastmcp.server.elicitation import AcceptedElicitation
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from kernelexec.mcp.calls.pending_inputs import Pending
from kernelexec.mcp.calls.task import TASK, Task
from kernelexec.policy.decisions import Approval, ApprovalRequest
from kernelexec.results import InputRequest
from kernelexec.text import clean_text

_APPROVAL, _APPROVE = "approval", "approve"
_INPUT, _TEXT = "input", "text"
_SHOWN_CHARS = 20_000
_APPROVAL_SCHEMA = {
    "type": "object",
    "properties": {_APPROVE: {"type": "boolean", "title": "Run it?", "default": False}},
    "required": [_APPROVE],
}
_INPUT_SCHEMA = {"type": "object", "properties": {_TEXT: {"type": "string", "title": "Answer"}}, "required": [_TEXT]}
#: From this revision on a server asks by an answer: revisions are dates.
_MODERN = "2026-07-28"


@dataclass(frozen=True, slots=True)
class Answered:
    """What the client answers with this call: a question of an execution, by its name; None for a text is none, and why."""

    execution_id: str
    question: str
    text: str | None
    why: str


class Asking:
    """Whom one call can ask. ``needed`` is what the call is to answer where the client has to be asked by that.

    Args:
        context: the call's.
        shown: what its caller calls a session.
    """

    def __init__(self, context: Context, shown: Callable[[str], str]) -> None:
        self.needed: InputRequiredResult | None = None
        self._context = context
        self._shown = shown
        self._task = TASK.get()

    @property
    def possible(self) -> bool:
        """Whether the client can be asked at all."""
        client = self._context.session.client_capabilities
        return client is not None and client.elicitation is not None

    async def __call__(self, request: ApprovalRequest, /) -> Approval:
        """See ``Approver``."""
        if not self.possible:
            return Approval(approved=False, reason="this client cannot be asked: it has no elicitation")
        question = self._question(request)
        if self._modern:
            return await self._approved(request, question)
        said = await self._context.elicit(question, bool, response_title="Run it?")
        return _approval(approved=isinstance(said, AcceptedElicitation) and said.data is True, action=said.action)

    async def answer(self, pending: Pending) -> bool:
        """Have the client asked what a cell asks; whether it was, or the call has to answer ``needed`` for that."""
        request = pending.request
        session = self._shown(request.session)
        if self._modern:
            self._need(_INPUT, asked_of(pending, session), f"{_INPUT}:{request.execution_id}:{pending.name}")
            return False
        said = await self._context.elicit(_inquiry(request, session), str, response_title="Answer")
        pending.answer(said.data if isinstance(said, AcceptedElicitation) else None, f"the client's answer was {said.action}")
        return True

    @property
    def answered(self) -> Answered | None:
        """The answer that this call brings, where it is one that was sent before and answered by a question."""
        kind, _, named = (self._context.request_state or "").partition(":")
        execution_id, _, question = named.partition(":")
        said = (self._context.input_responses or {}).get(_INPUT)
        if kind != _INPUT or not isinstance(said, ElicitResult):
            return None
        return Answered(execution_id, question, _text(said), _why(said))

    @property
    def _modern(self) -> bool:
        return self._context.session.protocol_version >= _MODERN

    @property
    def _begun(self) -> Task | None:
        return self._task if self._task is not None and self._task.begun else None

    async def _approved(self, request: ApprovalRequest, question: str) -> Approval:
        mark = _mark(request)
        said = (self._context.input_responses or {}).get(_APPROVAL)
        if isinstance(said, ElicitResult) and self._context.request_state == mark:
            return _said(said)
        asked = _elicitation(question, _APPROVAL_SCHEMA)
        if self._begun is not None:
            return _said(await self._begun.ask(asked))
        self._need(_APPROVAL, asked, mark)
        return Approval(approved=False, reason="the client is asked first")

    def _need(self, key: str, asked: ElicitRequest, state: str) -> None:
        self.needed = InputRequiredResult(input_requests={key: asked}, request_state=state)

    def _question(self, request: ApprovalRequest) -> str:
        proposal = request.proposal
        what = "command" if proposal.kind == "command" else f"{proposal.language} cell"
        shown, more = proposal.source[:_SHOWN_CHARS], len(proposal.source) - _SHOWN_CHARS
        shown += f"\n[... {more} characters more]" if more > 0 else ""
        session, reasons = self._shown(proposal.session), " ".join(request.reasons)
        return clean_text(f"Run this {what} in session {session}? {reasons}\n\n{shown}")


def asked_of(pending: Pending, session: str) -> ElicitRequest:
    """What a client is to be asked of a cell in what it calls that session."""
    return _elicitation(_inquiry(pending.request, session), _INPUT_SCHEMA)


def take(pending: Pending, said: ElicitResult) -> None:
    """Answer a question with what a client said."""
    pending.answer(_text(said), _why(said))


def _inquiry(request: InputRequest, session: str) -> str:
    return clean_text(f"The cell that runs in session {session} asks: {request.prompt or 'input()'}")


def _elicitation(message: str, schema: dict[str, Any]) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _text(said: ElicitResult) -> str | None:
    text = (said.content or {}).get(_TEXT) if said.action == "accept" else None
    return text if isinstance(text, str) else None


def _why(said: ElicitResult) -> str:
    return f"the client's answer was {said.action}"


def _said(answer: ElicitResult) -> Approval:
    yes = answer.action == "accept" and (answer.content or {}).get(_APPROVE) is True
    return _approval(approved=yes, action=answer.action)


def _approval(*, approved: bool, action: str) -> Approval:
    return Approval(approved, "" if approved else f"the client's answer was {'no' if action == 'accept' else action}")


def _mark(request: ApprovalRequest) -> str:
    """What an answer is for: this text, in this session, for these reasons."""
    proposal = request.proposal
    said = [proposal.session, proposal.kind, proposal.language, proposal.source, *request.reasons]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
