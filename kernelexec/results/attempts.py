"""The attempts of ``execute_with_retry``, each with its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelexec.results.json_values import to_plain_json
from kernelexec.results.result import ExecutionResult


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, counted from 1; ``kernel_restarted`` says that it ran in a new kernel, or that its kernel was replaced."""

    attempt: int
    code: str
    result: ExecutionResult
    kernel_restarted: bool = False

    @property
    def success(self) -> bool:
        """Whether the cell's status is ``ok``."""
        return self.result.ok

    @property
    def error(self) -> str | None:
        """The failure in one line; None after a success."""
        diagnosis = self.result.diagnosis
        if self.success:
            return None
        return self.result.status if diagnosis is None else f"{diagnosis.kind}: {diagnosis.message}"

    def to_dict(self) -> dict[str, Any]:
        """Return the attempt as JSON types: with ``result``, its output as text, or with ``error``, its failure."""
        outcome = {"result": self.result.text} if self.success else {"error": self.error}
        diagnosis = to_plain_json(self.result.diagnosis)
        fields = {"attempt": self.attempt, "success": self.success, **outcome, "code": self.code, "diagnosis": diagnosis}
        return {**fields, "duration": self.result.timing.wall, "kernel_restarted": self.kernel_restarted}


@dataclass(frozen=True, slots=True)
class Attempts:
    """All attempts of one ``execute_with_retry`` in order; there is at least one."""

    attempts: tuple[Attempt, ...]

    @property
    def result(self) -> ExecutionResult:
        """The result of the last attempt."""
        return self.attempts[-1].result

    @property
    def success(self) -> bool:
        """Whether the last attempt succeeded."""
        return self.attempts[-1].success

    @property
    def history(self) -> list[dict[str, Any]]:
        """All attempts as JSON types."""
        return [attempt.to_dict() for attempt in self.attempts]
