"""What a session shows of what it was given: cells, refusals, results and reports without the secrets that its kernels know."""

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
from kernelexec.session.cells.result_builder import never_ran


class Secrecy:
    """The part of a session that masks. Whoever derives from it gives it what there is to mask, or None."""

    name: str
    _secrets: SecretStore | None

    def mask(self, text: str) -> str:
        """A text with the names of secrets in the place of their values, as this session shows all that its kernels say.

        For those who show something of a cell before it was one, as a line of its source.
        """
        return text if self._secrets is None else self._secrets.masker.text(text)

    def masked_past(self, past: Past) -> Past:
        """What was done before, as it may be shown; the same object where there is nothing to mask."""
        if self._secrets is None:
            return past
        return replace(past, cells=tuple(_past_cell(self._secrets.masker, cell) for cell in past.cells))

    def _masked_cell(self, cell: Cell) -> Cell:
        return cell if self._secrets is None else self._secrets.masker.cell(cell)

    def _denied(self, turn: Turn, epoch: int, why: str) -> SecurityError:
        """What is raised of a turn that may not run and has no place in the queue; nothing of it ran."""
        return SecurityError(self.mask(why), sealed(never_ran(turn, self.name, epoch, why), self._secrets))

    def _refused(
        self, kind: Literal["code", "command"], source: object, error: KernelexecError, request_id: object
    ) -> CellRefused:
        """What hooks are told of a refusal; the error says nothing else to who asked."""
        if self._secrets is not None:
            masker = self._secrets.masker
            error.args = masker.texts(map(str, error.args))
            source = masker.text(source) if isinstance(source, str) else source
        return CellRefused(self.name, kind, source, error, request_id)


def sealed(result: ExecutionResult, secrets: SecretStore | None) -> ExecutionResult:
    """A result as it may be shown. Its outputs were masked as they came."""
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


def _diagnosis(masker: Masker, found: Diagnosis) -> Diagnosis:
    line_text, cause = (text and masker.text(text) for text in (found.line_text, found.cause))
    kind, message = masker.texts((found.kind, found.message))
    calls = tuple(replace(call, text=call.text and masker.text(call.text)) for call in found.calls)
    hints = masker.texts(found.hints)
    return replace(found, kind=kind, message=message, line_text=line_text, cause=cause, hints=hints, calls=calls)


def _past_cell(masker: Masker, cell: PastCell) -> PastCell:
    work_dir, stdin = (text and masker.text(text) for text in (cell.work_dir, cell.stdin))
    return replace(cell, source=masker.text(cell.source), work_dir=work_dir, stdin=stdin)
