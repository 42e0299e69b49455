"""The masking of secrets in one session's cells, refusals, results and reports, before callers and hooks get them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from kernelexec.cells import Cell
from kernelexec.errors import KernelexecError
from kernelexec.events import CellRefused
from kernelexec.launcher.protocol import ENCODED_VALUE
from kernelexec.results import Diagnosis, ExecutionResult

if TYPE_CHECKING:
    from kernelexec.recorded_history import History, RecordedCell
    from kernelexec.secrets import SecretStore
    from kernelexec.secrets.store import Masker


class ResultMasking:
    """The masking of one session: names of secrets replace their values. Without secrets nothing changes."""

    def __init__(self, session: str, secrets: SecretStore | None) -> None:
        self.secrets = secrets
        self._session = session

    def mask_text(self, text: str) -> str:
        """Return a text with masked secrets."""
        return text if self.secrets is None else self.secrets.masker.mask_text(text)

    def mask_texts(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Return texts with masked secrets."""
        return texts if self.secrets is None else self.secrets.masker.mask_texts(texts)

    def mask_value(self, value: Any) -> Any:  # noqa: ANN401 - JSON in, JSON out
        """Return a JSON value with masked secrets."""
        return value if self.secrets is None else self.secrets.masker.mask_value(value)

    def mask_cell(self, cell: Cell) -> Cell:
        """Return a cell with masked secrets."""
        return cell if self.secrets is None else self.secrets.masker.mask_cell(cell)

    def mask_history(self, history: History) -> History:
        """Return an earlier session's cells with masked secrets; the same object where there is nothing to mask."""
        if self.secrets is None:
            return history
        return replace(history, cells=tuple(_mask_recorded_cell(self.secrets.masker, cell) for cell in history.cells))

    def make_refusal(
        self, kind: Literal["code", "command"], source: object, error: KernelexecError, request_id: object
    ) -> CellRefused:
        """Return the event for a refused cell, and mask the error, so that the caller gets the same text as the hooks."""
        if self.secrets is not None:
            masker = self.secrets.masker
            error.args = masker.mask_texts(map(str, error.args))
            source = masker.mask_text(source) if isinstance(source, str) else source
        return CellRefused(self._session, kind, source, error, request_id)


def mask_result(result: ExecutionResult, secrets: SecretStore | None) -> ExecutionResult:
    """Return a result with masked secrets. Its outputs were masked when they arrived."""
    if secrets is None:
        return result
    masker = secrets.masker
    return replace(
        result,
        notes=masker.mask_texts(result.notes),
        files=masker.mask_texts(result.files),
        lost_names=masker.mask_texts(result.lost_names),
        work_dir=result.work_dir and masker.mask_text(result.work_dir),
        literal=False if isinstance(result.literal, str) and result.literal.startswith(ENCODED_VALUE) else result.literal,
        diagnosis=None if result.diagnosis is None else _mask_diagnosis(masker, result.diagnosis),
    )


def _mask_diagnosis(masker: Masker, diagnosis: Diagnosis) -> Diagnosis:
    line_text, cause = (text and masker.mask_text(text) for text in (diagnosis.line_text, diagnosis.cause))
    kind, message = masker.mask_texts((diagnosis.kind, diagnosis.message))
    calls = tuple(replace(call, text=call.text and masker.mask_text(call.text)) for call in diagnosis.calls)
    hints = masker.mask_texts(diagnosis.hints)
    return replace(diagnosis, kind=kind, message=message, line_text=line_text, cause=cause, hints=hints, calls=calls)


def _mask_recorded_cell(masker: Masker, cell: RecordedCell) -> RecordedCell:
    work_dir, stdin = (text and masker.mask_text(text) for text in (cell.work_dir, cell.stdin))
    return replace(cell, source=masker.mask_text(cell.source), work_dir=work_dir, stdin=stdin)
