"""The masking of secrets in cells, refusals, results and reports of one session, before callers and hooks get them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kernelexec.cells import Cell
from kernelexec.errors import KernelexecError
from kernelexec.events import CellRefused
from kernelexec.recorded_history import Past, PastCell
from kernelexec.results import Diagnosis, ExecutionResult, SecurityError
from kernelexec.secrets import SecretStore
from kernelexec.secrets.masker import Masker
from kernelexec.session.cells.cell_run import Turn
from kernelexec.session.cells.result_builder import aborted_result


class ResultMasking:
    """Puts the names of a session's secrets in the place of their values; without secrets everything stays as it is."""

    def __init__(self, session: str, secrets: SecretStore | None) -> None:
        self.secrets = secrets
        self._session = session

    def text(self, text: str) -> str:
        """Return a text without values of secrets."""
        return text if self.secrets is None else self.secrets.masker.text(text)

    def cell(self, cell: Cell) -> Cell:
        """Return a cell as it may be shown."""
        return cell if self.secrets is None else self.secrets.masker.cell(cell)

    def past(self, past: Past) -> Past:
        """Return an earlier session's cells as they may be shown; the same object where there is nothing to mask."""
        if self.secrets is None:
            return past
        return replace(past, cells=tuple(_past_cell(self.secrets.masker, cell) for cell in past.cells))

    def security_error(self, turn: Turn, epoch: int, reason: str) -> SecurityError:
        """Return the error for a refused turn that is not in the queue; nothing of it ran."""
        return SecurityError(self.text(reason), sealed(aborted_result(turn, self._session, epoch, reason), self.secrets))

    def refusal(
        self, kind: Literal["code", "command"], source: object, error: KernelexecError, request_id: object
    ) -> CellRefused:
        """Return the event for a refused cell, and mask the error itself: the caller gets the same text as the hooks."""
        if self.secrets is not None:
            masker = self.secrets.masker
            error.args = masker.texts(map(str, error.args))
            source = masker.text(source) if isinstance(source, str) else source
        return CellRefused(self._session, kind, source, error, request_id)


def sealed(result: ExecutionResult, secrets: SecretStore | None) -> ExecutionResult:
    """Return a result as it may be shown. Its outputs were masked when they arrived."""
    if secrets is None:
        return result
    masker = secrets.masker
    return replace(
        result,
        notes=masker.texts(result.notes),
        files=masker.texts(result.files),
        lost_names=masker.texts(result.lost_names),
        work_dir=result.work_dir and masker.text(result.work_dir),
        diagnosis=None if result.diagnosis is None else _diagnosis(masker, result.diagnosis),
    )


def _diagnosis(masker: Masker, diagnosis: Diagnosis) -> Diagnosis:
    line_text, cause = (text and masker.text(text) for text in (diagnosis.line_text, diagnosis.cause))
    kind, message = masker.texts((diagnosis.kind, diagnosis.message))
    calls = tuple(replace(call, text=call.text and masker.text(call.text)) for call in diagnosis.calls)
    hints = masker.texts(diagnosis.hints)
    return replace(diagnosis, kind=kind, message=message, line_text=line_text, cause=cause, hints=hints, calls=calls)


def _past_cell(masker: Masker, cell: PastCell) -> PastCell:
    work_dir, stdin = (text and masker.text(text) for text in (cell.work_dir, cell.stdin))
    return replace(cell, source=masker.text(cell.source), work_dir=work_dir, stdin=stdin)
