"""Progress reports, approvals and answers to `input()` between a waiting call and its client.

Until the protocol of 2025 a server asks its client during a call. Since 2026 a call returns "input required", and the client
repeats the call with the answer. A cell without the needed approval is refused first, and the approval is valid for this cell
only. A running cell keeps waiting for its input, and the request state identifies the repeated call.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from fastmcp import Context
from fastmcp.server.elicitation import AcceptedElicitation
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

from kernelexec.mcp.callers import STATELESS_VERSION
from kernelexec.results import ExecutionResult, InputRequest, Output, output_text
from kernelexec.results.outputs import read_displays
from kernelexec.rules.policy.decisions import Approval, ApprovalRequest
from kernelexec.text import escape_invisible, quote_line

#: The field of a client's form that has the answer.
_TEXT = "text"
_APPROVAL, _APPROVE = "approval", "approve"
_INPUT = "input"
_SHOWN_CHARS = 20_000
_APPROVAL_SCHEMA = {
    "type": "object",
    "properties": {_APPROVE: {"type": "boolean", "title": "Run it?", "default": False}},
    "required": [_APPROVE],
}
_INPUT_SCHEMA = {"type": "object", "properties": {_TEXT: {"type": "string", "title": "Answer"}}, "required": [_TEXT]}
_PASSWORD = "the server does not ask for passwords over MCP; pass secrets by reference, with --secret"  # noqa: S105 - a sentence
#: The first progress reports, in seconds. The first one comes early, since a client counts the server's own start too.
_FIRST_REPORTS = (0.8, 2.0, 4.0)
_LINE_CHARS = 200
_LOOKED_AT = 20


class Elicitation:
    """Access to a call's client for questions and progress. If ``input_required`` is set, the call must return this result.

    Args:
        context: the call's context.
        format_session: returns the caller's own name of a session.
    """

    def __init__(self, context: Context, format_session: Callable[[str], str]) -> None:
        self.input_required: InputRequiredResult | None = None
        self._context = context
        self._format_session = format_session
        self._began = time.monotonic()

    @property
    def is_possible(self) -> bool:
        """Whether the client supports elicitation."""
        client = self._context.session.client_capabilities
        return client is not None and client.elicitation is not None

    @asynccontextmanager
    async def report_while(self, state: str | Callable[[], Awaitable[str]], interval: float) -> AsyncIterator[None]:
        """Report progress while the block runs, if the client wants progress; for the times see ``generate_report_times``.

        A report has the seconds since the start of the call, and the state.
        """

        async def run() -> None:
            for seconds in generate_report_times(interval):
                if (left := self._began + seconds - time.monotonic()) > 0:
                    await anyio.sleep(left)
                    text = state if isinstance(state, str) else await state()
                    elapsed = time.monotonic() - self._began
                    await self._context.report_progress(elapsed, message=f"{elapsed:.0f} s: {text}")

        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            try:
                yield
            # The task group would wrap the error in an ExceptionGroup, past every `except KernelexecError`.
            except Exception as exc:  # noqa: BLE001 - raised below, outside of the group
                failure = exc
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def __call__(self, request: ApprovalRequest, /) -> Approval:
        """See ``Approver``."""
        if not self.is_possible:
            return Approval(approved=False, reason="this client does not support elicitation, so it cannot be asked")
        question = self._describe_proposal(request)
        if self._is_stateless:
            return await self._ask_approval(request, question)
        answer = await self._context.elicit(question, bool, response_title="Run it?")
        return _make_approval(approved=isinstance(answer, AcceptedElicitation) and answer.data is True, action=answer.action)

    async def ask_input(self, pending: PendingInput) -> None:
        """Ask the client for a cell's input: during the call, or by setting ``input_required``."""
        request = pending.request
        question = describe_input(request, self._format_session(request.session))
        if self._is_stateless:
            state = f"{_INPUT}:{request.execution_id}:{pending.name}"
            self._require_input(_INPUT, question, _INPUT_SCHEMA, state)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_after, pending.answered, tasks.cancel_scope)
            answer = await self._context.elicit(question, str, response_title="Answer")
            pending.answer(answer.data if isinstance(answer, AcceptedElicitation) else None, answer.action)

    @property
    def input_answer(self) -> InputAnswer | None:
        """The answer to an input request, if this call repeats the call with the request."""
        kind, _, execution = (self._context.request_state or "").partition(":")
        execution_id, _, question = execution.partition(":")
        answer = (self._context.input_responses or {}).get(_INPUT)
        if kind != _INPUT or not isinstance(answer, ElicitResult):
            return None
        return InputAnswer(execution_id, question, answer)

    @property
    def _is_stateless(self) -> bool:
        return self._context.session.protocol_version >= STATELESS_VERSION

    async def _ask_approval(self, request: ApprovalRequest, question: str) -> Approval:
        mark = _hash_request(request)
        answer = (self._context.input_responses or {}).get(_APPROVAL)
        # The client returns the mark with the answer. If the repeated call has another source, the approval does not count.
        if isinstance(answer, ElicitResult) and self._context.request_state == mark:
            yes = answer.action == "accept" and (answer.content or {}).get(_APPROVE) is True
            return _make_approval(approved=yes, action=answer.action)
        self._require_input(_APPROVAL, question, _APPROVAL_SCHEMA, mark)
        return Approval(approved=False, reason="the client must approve it first")

    def _require_input(self, key: str, message: str, schema: dict[str, Any], request_state: str) -> None:
        form = ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))
        self.input_required = InputRequiredResult(input_requests={key: form}, request_state=request_state)

    def _describe_proposal(self, request: ApprovalRequest) -> str:
        proposal = request.proposal
        kind = "command" if proposal.kind == "command" else f"{proposal.language} cell"
        shown, more = proposal.source[:_SHOWN_CHARS], len(proposal.source) - _SHOWN_CHARS
        shown += f"\n[... {more} more characters]" if more > 0 else ""
        session, reasons = self._format_session(proposal.session), " ".join(request.reasons)
        return escape_invisible(f"Run this {kind} in session {session}? {reasons}\n\n{shown}")


def describe_input(request: InputRequest, session: str) -> str:
    """Return the question for a cell's input; ``session`` is the caller's name of the session."""
    return quote_line(f"The running cell in session {session} asks: {request.prompt or 'input()'}")


def _make_approval(*, approved: bool, action: str) -> Approval:
    return Approval(approved, "" if approved else f"the client's answer was {'no' if action == 'accept' else action}")


def _hash_request(request: ApprovalRequest) -> str:
    """Return a hash of the request: an approval is valid only for this source, session and these reasons."""
    proposal = request.proposal
    parts = [proposal.session, proposal.kind, proposal.language, proposal.source, *request.reasons]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(eq=False, slots=True)
class PendingInput:
    """Input request without an answer so far, with a unique name."""

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

    async def ask(self, request: InputRequest) -> str:
        """Return the answer when a client has sent it.

        Raises:
            EOFError: the client declined, or the request is for a password; the message has the reason.
        """
        if request.password:  # MCP forbids forms that ask for secrets
            raise EOFError(_PASSWORD)
        pending = PendingInput(request)
        self._pending.append(pending)
        try:
            await pending.answered.wait()
        finally:
            self._pending.remove(pending)
            pending.answered.set()  # also if the cell has ended: its client is not waited for
        if pending.text is None:
            raise EOFError(pending.reason)
        return pending.text

    def find(self, execution_id: str) -> PendingInput | None:
        """Return an execution's oldest pending input request."""
        of_execution = (pending for pending in self._pending if pending.request.execution_id == execution_id)
        return next((pending for pending in of_execution if not pending.answered.is_set()), None)

    def accept(self, answer: InputAnswer) -> None:
        """Pass an answer on to its input request, if still pending."""
        # By the name of the request: an answer that comes twice must not answer the cell's next question.
        for pending in self._pending:
            if (pending.request.execution_id, pending.name) == (answer.execution_id, answer.input_name):
                text = (answer.form.content or {}).get(_TEXT) if answer.form.action == "accept" else None
                pending.answer(text if isinstance(text, str) else None, answer.form.action)


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The client's answer to an execution's input request."""

    execution_id: str
    input_name: str
    form: ElicitResult


@dataclass(frozen=True, slots=True)
class PartialResult:
    """Result of an execution so far, with the outputs new to the caller."""

    result: ExecutionResult
    outputs: tuple[Output, ...]
    since: int = 0
    cursor: int = 0
    missed_bytes: int = 0
    queue_position: int = 0
    is_readable: bool = True  #: whether read_output has its output; not so for an outcome that only the journal has


def generate_report_times(interval: float) -> Iterator[float]:
    """Yield the seconds of progress reports since the start of a call: 0.8, 2, 4, then every ``interval``.

    The early reports are for clients with a timeout of five seconds. A shorter interval holds from the start.
    """
    elapsed = 0.0
    for report in _FIRST_REPORTS:
        if report - elapsed > interval:
            break
        elapsed = report
        yield elapsed
    while True:
        elapsed += interval
        yield elapsed


def find_last_line(outputs: Sequence[Output]) -> str:
    """Return the last line with visible text, at most 200 characters; empty without such a line."""
    for output in read_displays(reversed(outputs[-_LOOKED_AT:])):
        # A progress bar rewrites its line with carriage returns: only the last state counts.
        tail = output_text([output])[-_LINE_CHARS * 20 :].replace("\r", "\n")
        if lines := [line.strip() for line in tail.split("\n") if line.strip()]:
            return quote_line(lines[-1][:_LINE_CHARS])
    return ""
