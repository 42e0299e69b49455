"""A call's client as the approver: it asks whoever sits there, in both eras of the protocol.

Until 2025 a server asked its client while a call ran. Since 2026 a call answers that it needs input, and is sent again with
that: so the cell is refused the first time, and the answer counts for that very cell only. A call that has become a task by
then has no answer any more: the task asks, and the cell waits.
"""

from __future__ import annotations

import hashlib
import json

from fastmcp import Context
from fastmcp.server.elicitation import AcceptedElicitation
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from kernelexec.mcp.task import TASK
from kernelexec.policy.decisions import Approval, ApprovalRequest
from kernelexec.text import clean_text

_KEY, _FIELD = "approval", "approve"
_SHOWN_CHARS = 20_000
_SCHEMA = {
    "type": "object",
    "properties": {_FIELD: {"type": "boolean", "title": "Run it?", "default": False}},
    "required": [_FIELD],
}
#: From this revision on a server asks by an answer: revisions are dates.
_MODERN = "2026-07-28"


class Asking:
    """The approver of one call. ``needed`` is what the call is to answer where the client has to be asked first."""

    def __init__(self, context: Context) -> None:
        self.needed: InputRequiredResult | None = None
        self._context = context
        self._task = TASK.get()

    async def __call__(self, request: ApprovalRequest, /) -> Approval:
        """See ``Approver``."""
        if not self._can_ask():
            return Approval(approved=False, reason="this client cannot be asked: it has no elicitation")
        if self._context.session.protocol_version >= _MODERN:
            return await self._modern(request)
        said = await self._context.elicit(_question(request), bool, response_title="Run it?")
        return _approval(approved=isinstance(said, AcceptedElicitation) and said.data is True, action=said.action)

    def _can_ask(self) -> bool:
        client = self._context.session.client_capabilities
        return client is not None and client.elicitation is not None

    async def _modern(self, request: ApprovalRequest) -> Approval:
        mark = _mark(request)
        said = (self._context.input_responses or {}).get(_KEY)
        if isinstance(said, ElicitResult) and self._context.request_state == mark:
            return _said(said)
        question = ElicitRequest(params=ElicitRequestFormParams(message=_question(request), requested_schema=_SCHEMA))
        if self._task is not None and self._task.begun:
            return _said(await self._task.ask(question))
        self.needed = InputRequiredResult(input_requests={_KEY: question}, request_state=mark)
        return Approval(approved=False, reason="the client is asked first")


def _said(answer: ElicitResult) -> Approval:
    yes = answer.action == "accept" and (answer.content or {}).get(_FIELD) is True
    return _approval(approved=yes, action=answer.action)


def _approval(*, approved: bool, action: str) -> Approval:
    return Approval(approved, "" if approved else f"the client's answer was {'no' if action == 'accept' else action}")


def _question(request: ApprovalRequest) -> str:
    proposal = request.proposal
    what = "command" if proposal.kind == "command" else f"{proposal.language} cell"
    shown, more = proposal.source[:_SHOWN_CHARS], len(proposal.source) - _SHOWN_CHARS
    shown += f"\n[... {more} characters more]" if more > 0 else ""
    return clean_text(f"Run this {what} in session {proposal.session}? {' '.join(request.reasons)}\n\n{shown}")


def _mark(request: ApprovalRequest) -> str:
    """What an answer is for: this text, in this session, for these reasons."""
    proposal = request.proposal
    said = [proposal.session, proposal.kind, proposal.language, proposal.source, *request.reasons]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()
