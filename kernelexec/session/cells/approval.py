"""Whether a turn may run: the rules at once; where validators or a person decide too, in its turn, before it is sent."""

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
_NOBODY = "nobody is there to be asked: give the executor, or the call, an approver"


class Permission:
    """Decides for the turns of one session. What another owner sent, that one has decided."""

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

    def refuses(self, turn: Turn) -> str | None:
        """Why a turn may not run, where that is known without asking anybody; None where it may, or is decided in its turn."""
        if not turn.own and not turn.in_flight and not self._asks:
            turn.refusal = self._judge.judge(turn.cell)
        return None if turn.refusal is None else str(turn.refusal)

    async def refused(self, turn: Turn) -> str | None:
        """Why a turn may not run, once all who decide have been asked; its cell may be another one then."""
        if turn.own or turn.in_flight or not self._asks:
            return None
        return await self.refused_together(turn, [turn])

    async def refused_together(self, whole: Turn, parts: Sequence[Turn]) -> str | None:
        """The same of a turn that is made of parts: each is judged, and somebody is asked once, about the whole."""
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
                        return self._denied(whole, "validator", f"A validator denies it: {reason}")
            if (found := self._judge.judge(part.cell)) is None:
                continue
            refusal = found
            if self._ask == "never":
                whole.refusal = refusal
                return str(refusal)
            reasons.append(f"{refusal.why} (rule {refusal.rule!r})")
        reasons += ["Every cell is asked about."] if self._ask == "always" and not reasons else []
        if not reasons:
            return None
        denied = await self._approved(whole, tuple(reasons))
        whole.overruled = refusal is not None and denied is None
        return denied

    @property
    def _asks(self) -> bool:
        return bool(self._validators) or self._ask != "never"

    def _proposal(self, cell: Cell) -> Proposal:
        is_command = isinstance(cell, ShellCell) and cell.lasts
        return Proposal(self._session, "command" if is_command else "code", cell.language, cells.said(cell))

    def _rewrite(self, turn: Turn, source: str, reason: str) -> None:
        """Have another text run in the cell's place.

        Raises:
            InvalidCode: no kernel could take it.
        """
        try:
            turn.cell = cells.rewritten(turn.cell, source, limit_bytes=self._limit)
        except InvalidCode as exc:
            message = f"A validator rewrote the cell into what cannot run: {exc}"
            raise InvalidCode(message) from exc
        turn.shown = turn.cell if self._secrets is None else self._secrets.masker.cell(turn.cell)
        turn.remarks.append(f"A validator rewrote the cell: {reason or 'it gave no reason'}.")

    async def _approved(self, turn: Turn, reasons: tuple[str, ...]) -> str | None:
        approver = turn.approver or self._approver
        if self._secrets is not None:
            reasons = self._secrets.masker.texts(reasons)
        request = ApprovalRequest(turn.execution_id, self._proposal(turn.shown), reasons)
        answer = Approval(approved=False, reason=_NOBODY) if approver is None else await self._answer(approver, request)
        why = f": {answer.reason}" if answer.reason else ""
        if answer.approved:
            turn.remarks.append(f"It was approved{why}. Asked because: {' '.join(reasons)}")
            return None
        return self._denied(turn, "approval", f"It was not approved{why}. Asked because: {' '.join(reasons)}")

    async def _answer(self, approver: Approver, request: ApprovalRequest) -> Approval:
        try:
            with anyio.fail_after(self._patience):
                said = await called(approver, request)
        except TimeoutError:
            return Approval(approved=False, reason=f"there was no answer within {self._patience:g} s")
        except CallFailed as exc:
            logger.exception("kernelexec.approver_failed", extra={"session": self._session})
            return Approval(approved=False, reason=f"the approver failed ({exc})")
        if isinstance(said, Approval):
            return said
        return Approval(approved=said is True)

    def _denied(self, turn: Turn, rule: str, why: str) -> str:
        turn.refusal = Refusal(rule, shown(cells.said(turn.shown)), why.rstrip("."), _OTHERWISE)
        return str(turn.refusal)


async def _decision(validator: Validator, proposal: Proposal) -> Allow | Ask | Deny | Rewrite:
    """What a validator decides; what it raises, or says that is no decision, is a denial."""
    try:
        said = await called(validator, proposal)
    except CallFailed as exc:
        logger.exception("kernelexec.validator_failed", extra={"session": proposal.session})
        return Deny(str(exc))
    if said is None:
        return Allow()
    if isinstance(said, Allow | Ask | Deny | Rewrite):
        return said
    return Deny(f"it said {said!r:.100}, which is no decision")


def check_callables(validators: object, approver: object, on_input: object = None) -> tuple[Validator, ...]:
    """The validators, once it is known that they and the others can be called.

    Raises:
        InvalidRequest: one cannot.
    """
    found = tuple(validators) if isinstance(validators, list | tuple) else None
    if found is None or not all(map(callable, found)):
        message = f"validators={validators!r:.200}: a list of functions of one proposal."
        raise InvalidRequest(message)
    if approver is not None and not callable(approver):
        message = f"approver={approver!r:.200}: a function of one request."
        raise InvalidRequest(message)
    if on_input is not None and not callable(on_input):
        message = f"on_input={on_input!r:.200}: a function of one request."
        raise InvalidRequest(message)
    return found
