"""The approval of cells: by the rules at once; by validators or a person in turn, before the cell is sent."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from kernelexec import cells
from kernelexec.cells import Cell, ShellCell
from kernelexec.config import Config
from kernelexec.errors import InvalidCode, InvalidRequest
from kernelexec.policy import Judge, Refusal
from kernelexec.policy.decisions import (
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
from kernelexec.policy.refusal import shown
from kernelexec.secrets import SecretStore
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.user_callbacks import CallFailed, called

logger = logging.getLogger("kernelexec")
_OTHERWISE = "Nothing ran; other cells are not concerned."
_NO_APPROVER = "there is no approver: give one to the executor, or to the call"


class Permission:
    """Approves or refuses the runs of one session. Cells sent by a previous owner of its kernel were approved there."""

    def __init__(
        self,
        session: str,
        config: Config,
        validators: Sequence[Validator],
        approver: Approver | None,
        secrets: SecretStore | None = None,
    ) -> None:
        self._session = session
        self._judge = Judge.of(config)
        self._ask = config.rules.ask
        self._patience = config.budgets.approval
        self._limit = config.capacity.code_bytes
        self._validators = tuple(validators)
        self._approver = approver
        self._secrets = secrets

    async def check(self, run: Turn, parts: Sequence[Turn] | None = None, *, early: bool = False) -> str | None:
        """Return the reason why a run must not start, or None; a validator may have changed its cell then.

        Args:
            run: the run, which is approved once.
            parts: the cells that it consists of, each of which is judged; the approver is asked once, about the run.
            early: decide only if the rules decide alone: validators and the approver are asked in the run's turn.
        """
        asks = bool(self._validators) or self._ask != "never"
        if run.own or run.in_flight or run.is_approved or (early and asks):
            return None
        refusal = await self._decide(run, (run,) if parts is None else parts)
        run.is_approved = refusal is None
        return refusal

    async def _decide(self, run: Turn, parts: Sequence[Turn]) -> str | None:
        reasons: list[str] = []
        refusal: Refusal | None = None
        for part in parts:
            for validator in self._validators:
                match await _decision(validator, self._proposal(part.cell)):
                    case Ask(reason):
                        reasons.append(reason)
                    case Rewrite(source, reason):
                        self._rewrite(part, source, reason)
                    case Deny(reason):
                        return self._deny(run, "validator", f"A validator denies it: {reason}")
            if (violation := self._judge.judge(part.cell)) is None:
                continue
            refusal = violation
            if self._ask == "never":
                run.refusal = refusal
                return str(refusal)
            reasons.append(f"{refusal.why} (rule {refusal.rule!r})")
        reasons += ["Every cell is asked about."] if self._ask == "always" and not reasons else []
        if not reasons:
            return None
        denial = await self._request_approval(run, tuple(reasons))
        run.overruled = refusal is not None and denial is None
        return denial

    def _proposal(self, cell: Cell) -> Proposal:
        is_command = isinstance(cell, ShellCell) and cell.lasts
        return Proposal(self._session, "command" if is_command else "code", cell.language, cells.said(cell))

    def _rewrite(self, turn: Turn, source: str, reason: str) -> None:
        """Replace the source of a cell.

        Raises:
            InvalidCode: no kernel could run it.
        """
        try:
            turn.cell = cells.rewritten(turn.cell, source, limit_bytes=self._limit)
        except InvalidCode as exc:
            message = f"A validator rewrote the cell into code that cannot run: {exc}"
            raise InvalidCode(message) from exc
        turn.shown = turn.cell if self._secrets is None else self._secrets.masker.cell(turn.cell)
        turn.remarks.append(f"A validator rewrote the cell: {reason or 'it gave no reason'}.")

    async def _request_approval(self, turn: Turn, reasons: tuple[str, ...]) -> str | None:
        approver = turn.approver or self._approver
        if self._secrets is not None:
            reasons = self._secrets.masker.texts(reasons)
        request = ApprovalRequest(turn.execution_id, self._proposal(turn.shown), reasons)
        answer = Approval(approved=False, reason=_NO_APPROVER) if approver is None else await self._answer(approver, request)
        comment = f": {answer.reason}" if answer.reason else ""
        if answer.approved:
            turn.remarks.append(f"It was approved{comment}. Asked because: {' '.join(reasons)}")
            return None
        return self._deny(turn, "approval", f"It was not approved{comment}. Asked because: {' '.join(reasons)}")

    async def _answer(self, approver: Approver, request: ApprovalRequest) -> Approval:
        try:
            with anyio.fail_after(self._patience):
                response = await called(approver, request)
        except TimeoutError:
            return Approval(approved=False, reason=f"there was no answer within {self._patience:g} s")
        except CallFailed as exc:
            logger.exception("kernelexec.approver_failed", extra={"session": self._session})
            return Approval(approved=False, reason=f"the approver failed ({exc})")
        return response if isinstance(response, Approval) else Approval(approved=response is True)

    def _deny(self, turn: Turn, rule: str, reason: str) -> str:
        turn.refusal = Refusal(rule, shown(cells.said(turn.shown)), reason.rstrip("."), _OTHERWISE)
        return str(turn.refusal)


async def _decision(validator: Validator, proposal: Proposal) -> Allow | Ask | Deny | Rewrite:
    """Return the decision of a validator; an error, or an answer of another type, is a denial."""
    try:
        decision = await called(validator, proposal)
    except CallFailed as exc:
        logger.exception("kernelexec.validator_failed", extra={"session": proposal.session})
        return Deny(str(exc))
    if decision is None:
        return Allow()
    if isinstance(decision, Allow | Ask | Deny | Rewrite):
        return decision
    return Deny(f"it said {decision!r:.100}, which is no decision")


def check_callables(validators: object, approver: object, on_input: object = None) -> tuple[Validator, ...]:
    """Check that validators, approver and input callback can be called; return the validators.

    Raises:
        InvalidRequest: one of them cannot.
    """
    functions = tuple(validators) if isinstance(validators, list | tuple) else None
    if functions is None or not all(map(callable, functions)):
        message = f"validators={validators!r:.200}: must be a list of functions of one proposal."
        raise InvalidRequest(message)
    if approver is not None and not callable(approver):
        message = f"approver={approver!r:.200}: must be a function of one request."
        raise InvalidRequest(message)
    if on_input is not None and not callable(on_input):
        message = f"on_input={on_input!r:.200}: must be a function of one request."
        raise InvalidRequest(message)
    return functions
