"""The words of repeated tries: each attempt with its result, and how all of it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelexec.results.result import ExecutionResult, plain_json


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: ``attempt`` counts from 1; ``kernel_restarted`` says that it ran in a new kernel, or left one behind."""

    attempt: int
    code: str
    result: ExecutionResult
    kernel_restarted: bool = False

    @property
    def success(self) -> bool:
        """Whether the cell ended well, by its status: no text is searched."""
        return self.result.ok

    @property
    def error(self) -> str | None:
        """Why it failed, in one line."""
        diagnosis = self.result.diagnosis
        if self.success:
            return None
        return self.result.status if diagnosis is None else f"{diagnosis.kind}: {diagnosis.message}"

    def to_dict(self) -> dict[str, Any]:
        """The attempt as JSON types only: ``result`` holds what a good one put out as text, ``error`` why one failed."""
        outcome = {"result": self.result.text} if self.success else {"error": self.error}
        diagnosis = plain_json(self.result.diagnosis)
        said = {"attempt": self.attempt, "success": self.success, **outcome, "code": self.code, "diagnosis": diagnosis}
        return {**said, "duration": self.result.timing.wall, "kernel_restarted": self.kernel_restarted}


@dataclass(frozen=True, slots=True)
class Attempts:
    """All tries of one ``execute_with_retry``, the first one first; there is one at least."""

    attempts: tuple[Attempt, ...]

    @property
    def result(self) -> ExecutionResult:
        """That of the last one."""
        return self.attempts[-1].result

    @property
    def success(self) -> bool:
        """Whether the last one ended well."""
        return self.attempts[-1].success

    @property
    def history(self) -> list[dict[str, Any]]:
        """All of them as JSON types only."""
        return [attempt.to_dict() for attempt in self.attempts]
