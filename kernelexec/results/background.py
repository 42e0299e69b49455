"""The words of commands that run beside a session's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.results.result import plain_json

#: ``stopped``: it ended with exit code 0, ``failed``: with another one; ``killed``: on request; ``lost``: with its kernel.
BackgroundStatus = Literal["running", "stopped", "failed", "killed", "lost"]
_KNOWN: tuple[BackgroundStatus, ...] = ("running", "stopped", "failed", "killed")


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """One of them as it was when it was asked for. ``duration`` is in seconds, and grows while it runs.

    ``exit_code`` is None while it runs, and where nobody can know it. The lines are all that it has written so far.
    """

    command_id: str
    command: str
    status: BackgroundStatus
    exit_code: int | None = None
    duration: float = 0.0
    stdout_lines: int = 0
    stderr_lines: int = 0
    kernel_epoch: int = 0

    def now(self, said: object) -> Self:
        """The same as the kernel says it; as it was where that makes no sense."""
        if not isinstance(said, dict):
            return self
        status = next((known for known in _KNOWN if said.get("status") == known), self.status)
        code, seconds = said.get("exit_code"), said.get("seconds")
        return type(self)(
            self.command_id,
            self.command,
            status,
            code if isinstance(code, int) and not isinstance(code, bool) else None,
            float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 2**40 else self.duration,
            _count(said.get("stdout_lines")),
            _count(said.get("stderr_lines")),
            self.kernel_epoch,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON types only."""
        plain: dict[str, Any] = plain_json(self)
        return plain


@dataclass(frozen=True, slots=True)
class BackgroundOutput:
    """The newest lines of a background command's streams, and how many came before them."""

    command: BackgroundCommand
    stdout: str
    stderr: str
    stdout_dropped: int = 0
    stderr_dropped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON types only."""
        plain: dict[str, Any] = plain_json(self)
        return plain


def _count(said: object) -> int:
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said < 2**62 else 0
