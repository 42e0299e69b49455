"""Background commands of a session, and their output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from kernelexec.results.result import to_plain_json

#: ``stopped``: ended with exit code 0; ``failed``: with another one; ``killed``: on request; ``lost``: with its kernel.
BackgroundStatus = Literal["running", "stopped", "failed", "killed", "lost"]
_REPORTED: tuple[BackgroundStatus, ...] = ("running", "stopped", "failed", "killed")


@dataclass(frozen=True, slots=True)
class BackgroundCommand:
    """The state of a background command at the time of the call. ``duration`` is in seconds so far.

    ``exit_code`` is None while the command runs, and if it is unknown. The line counts are totals so far.
    """

    command_id: str
    command: str
    status: BackgroundStatus
    exit_code: int | None = None
    duration: float = 0.0
    stdout_lines: int = 0
    stderr_lines: int = 0
    kernel_epoch: int = 0

    def update(self, reply: object) -> Self:
        """Return the command with the state of the kernel's reply; invalid values are ignored."""
        if not isinstance(reply, dict):
            return self
        status = next((status_name for status_name in _REPORTED if reply.get("status") == status_name), self.status)
        code, seconds = reply.get("exit_code"), reply.get("seconds")
        return type(self)(
            self.command_id,
            self.command,
            status,
            code if isinstance(code, int) and not isinstance(code, bool) else None,
            float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 2**40 else self.duration,
            _count(reply.get("stdout_lines")),
            _count(reply.get("stderr_lines")),
            self.kernel_epoch,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        plain: dict[str, Any] = to_plain_json(self)
        return plain


@dataclass(frozen=True, slots=True)
class BackgroundOutput:
    """The newest lines of a background command's streams, and the numbers of lines before them."""

    command: BackgroundCommand
    stdout: str
    stderr: str
    stdout_dropped: int = 0
    stderr_dropped: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        plain: dict[str, Any] = to_plain_json(self)
        return plain


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else 0
