"""The approval of cells: by the rules at submission; by validators and an approver just before a cell is sent.

Validators and approvers are the user's functions. A plain function runs in a thread. Their exceptions end no task of
this package.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from kernelexec import cells
from kernelexec.cancellation import call_in_own_thread
from kernelexec.cells import Cell, ShellCell
from kernelexec.config import Config
from kernelexec.errors import InvalidCode
from kernelexec.rules.policy import Policy, Refusal
from kernelexec.rules.policy.decisions import (
    Allow,
    Approval,
    ApprovalRequest,
    Approver,
    Ask,
    Deny,
    Proposal,
    Rewrite,
    Validator,
)
from kernelexec.rules.policy.refusal import shorten_command
from kernelexec.session.cells.cell_run import CellRun

if TYPE_CHECKING:
    from kernelexec.rules.secrets import SecretStore


logger = logging.getLogger("kernelexec")
_NOTHING_RAN = "Nothing ran; other cells are not affected."
_NO_APPROVER = "there is no approver: pass one to the executor, or to the call"


class CellApproval:
    """The approval of a session's cells. Cells sent by a previous owner of the kernel were approved by that owner."""

    def __init__(
        self,
        session: str,
        config: Config,
        validators: Sequence[Validator],
        approver: Approver | None,
        secrets: SecretStore | None = None,
    ) -> None:
        self._session = session
        self._judge = Policy.from_config(config)
        self._ask_mode = config.rules.ask
        self.asks = bool(validators) or self._ask_mode != "never"
        """Whether validators or an approver decide just before a cell runs. Otherwise the rules alone decide at submission."""
        self._answer_seconds = config.budgets.approval
        self._limit = config.capacity.code_bytes
        self._validators = tuple(validators)
        self._approver = approver
        self._secrets = secrets

    async def check(self, run: CellRun, case_runs: Sequence[CellRun] | None = None) -> str | None:
        """Return the reason for refusing a run, or None; a validator may have changed its cell.

        Args:
            run: the run.
            case_runs: the cells of the run. Each is judged; the approver decides once, about the whole run.
        """
        if run.internal or run.in_flight:
            return None
        return await self._decide(run, (run,) if case_runs is None else case_runs)

    async def _decide(self, run: CellRun, case_runs: Sequence[CellRun]) -> str | None:
        reasons: list[str] = []
        refusal: Refusal | None = None
        for case_run in case_runs:
            for validator in self._validators:
                match await _call_validator(validator, self._make_proposal(case_run.cell)):
                    case Ask(reason):
                        reasons.append(reason)
                    case Rewrite(source, reason):
                        self._rewrite(case_run, source, reason)
                    case Deny(reason):
                        return self._deny(run, "validator", f"A validator denies it: {reason}")
            # after the validators, so that the rules judge the source that runs, not the source before a rewrite
            if (violation := self._judge.check(case_run.cell)) is None:
                continue
            refusal = violation
            if self._ask_mode == "never":
                run.refusal = refusal
                return str(refusal)
            reasons.append(f"{refusal.reason} (rule {refusal.rule!r})")
        reasons += ["Every cell needs approval."] if self._ask_mode == "always" and not reasons else []
        if not reasons:
            return None
        denial = await self._request_approval(run, tuple(reasons))
        run.rules_overridden = refusal is not None and denial is None
        return denial

    def _make_proposal(self, cell: Cell) -> Proposal:
        is_command = isinstance(cell, ShellCell) and cell.persistent
        return Proposal(self._session, "command" if is_command else "code", cell.language, cells.original_source(cell))

    def _rewrite(self, run: CellRun, source: str, reason: str) -> None:
        """Replace the source of a cell; raise ``InvalidCode`` if no kernel can run it."""
        try:
            run.cell = cells.with_source(run.cell, source, limit_bytes=self._limit)
        except InvalidCode as exc:
            raise InvalidCode(f"A validator rewrote the cell into code that cannot run: {exc}") from exc
        run.masked_cell = run.cell if self._secrets is None else self._secrets.masker.mask_cell(run.cell)
        run.notes.append(f"A validator rewrote the cell: {reason or 'it gave no reason'}.")

    async def _request_approval(self, run: CellRun, reasons: tuple[str, ...]) -> str | None:
        approver = run.approver or self._approver
        if self._secrets is not None:
            reasons = self._secrets.masker.mask_texts(reasons)
        request = ApprovalRequest(run.execution_id, self._make_proposal(run.masked_cell), reasons)
        answer = (
            Approval(approved=False, reason=_NO_APPROVER) if approver is None else await self._call_approver(approver, request)
        )
        comment = f": {answer.reason}" if answer.reason else ""
        if answer.approved:
            run.notes.append(f"It was approved{comment}. Asked because: {' '.join(reasons)}")
            return None
        return self._deny(run, "approval", f"It was not approved{comment}. Asked because: {' '.join(reasons)}")

    async def _call_approver(self, approver: Approver, request: ApprovalRequest) -> Approval:
        try:
            with anyio.fail_after(self._answer_seconds):
                response = await call_user_function(approver, request)
        except TimeoutError:
            return Approval(approved=False, reason=f"there was no answer within {self._answer_seconds:g} s")
        except CallbackError as exc:
            logger.exception("kernelexec.approver_failed", extra={"session": self._session})
            return Approval(approved=False, reason=f"the approver failed ({exc})")
        return _read_answer(response)

    def _deny(self, run: CellRun, rule: str, reason: str) -> str:
        run.refusal = Refusal(rule, shorten_command(cells.original_source(run.masked_cell)), reason.rstrip("."), _NOTHING_RAN)
        return str(run.refusal)


def _read_answer(answer: object) -> Approval:
    """Return an approver's answer; an answer of an unknown type is a denial."""
    if isinstance(answer, bool):
        return Approval(answer)
    if problem := _find_problem(answer, (Approval, Allow, Deny), "Approval, Allow, Deny, True or False"):
        return Approval(approved=False, reason=f"the approver {problem}")
    return answer if isinstance(answer, Approval) else Approval(isinstance(answer, Allow), getattr(answer, "reason", ""))


async def _call_validator(validator: Validator, proposal: Proposal) -> Allow | Ask | Deny | Rewrite:
    """Return the decision of a validator; an error and an answer of another type are denials."""
    try:
        decision: Allow | Ask | Deny | Rewrite | None = await call_user_function(validator, proposal)
    except CallbackError as exc:
        logger.exception("kernelexec.validator_failed", extra={"session": proposal.session})
        return Deny(str(exc))
    if decision is None:
        return Allow()
    problem = _find_problem(decision, (Allow, Ask, Deny, Rewrite), "Allow, Ask, Deny, Rewrite or None")
    return Deny(f"it {problem}") if problem else decision


def _find_problem(answer: Any, kinds: tuple[type[Any], ...], expected: str) -> str | None:  # noqa: ANN401 - of a user's function
    """Return the problem with the type of an answer or of a field; nothing else checks these types."""
    if not isinstance(answer, kinds):
        return f"returned {answer!r:.100}; it must return {expected}"
    # dataclasses check no types: Approval(approved="no") would count as a yes
    for field in fields(answer):
        if not isinstance(getattr(answer, field.name), bool if field.type == "bool" else str):
            return f"returned {answer!r:.100}; its {field.name} must be {field.type}"
    return None


class CallbackError(Exception):
    """An exception of a user's function, with its text as the message."""


async def call_user_function(function: Any, argument: object) -> Any:  # noqa: ANN401 - a user's function and its result
    """Call a function in a separate task, which the function may cancel; raise ``CallbackError`` for its exceptions."""
    result: Any = None
    raised: BaseException | None = None

    async def run() -> None:
        nonlocal result, raised
        try:
            result = await _call(function, argument)
        except anyio.get_cancelled_exc_class() as exc:
            raised = exc  # the function may have cancelled this task itself; the task group swallows that cancellation
            raise
        except BaseException as exc:  # noqa: BLE001 - also SystemExit, which would end the event loop with all sessions
            raised = exc

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if raised is not None:
        message = f"{type(raised).__name__}: {raised}".removesuffix(": ")
        raise CallbackError(message) from raised
    return result


async def _call(function: Any, argument: object) -> Any:  # noqa: ANN401 - as above
    """Call a coroutine function here, or a plain function in a thread. A cancelled caller abandons the thread."""
    # an object with an async ``__call__`` is no coroutine function to inspect, and would return its coroutine from a thread
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(argument)
    result = await call_in_own_thread(partial(function, argument))
    return await result if inspect.isawaitable(result) else result
