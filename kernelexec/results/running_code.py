"""Running code: background commands with their output, and cells with requests for input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

from kernelexec.results.json_values import JsonConvertible, is_count, read_seconds

#: ``stopped``: ended with exit code 0; ``failed``: with another one; ``killed``: on request; ``lost``: with its kernel.
BackgroundStatus = Literal["running", "stopped", "failed", "killed", "lost"]
_REPORTED: tuple[BackgroundStatus, ...] = ("running", "stopped", "failed", "killed")


@dataclass(frozen=True, slots=True)
class BackgroundCommand(JsonConvertible):
    """The state of a background command at the time of the call. ``duration`` is in seconds so far.

    ``exit_code`` is None for a running command, and if unknown. The line counts are totals so far.
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
        status = next((reported for reported in _REPORTED if reply.get("status") == reported), self.status)
        code = reply.get("exit_code")
        return replace(
            self,
            status=status,
            exit_code=code if is_count(code) else None,
            duration=read_seconds(reply.get("seconds"), self.duration),
            stdout_lines=lines if is_count(lines := reply.get("stdout_lines")) else 0,
            stderr_lines=lines if is_count(lines := reply.get("stderr_lines")) else 0,
        )


@dataclass(frozen=True, slots=True)
class BackgroundOutput(JsonConvertible):
    """The newest lines of a background command's streams, and the numbers of lines before them."""

    command: BackgroundCommand
    stdout: str
    stderr: str
    stdout_dropped: int = 0
    stderr_dropped: int = 0


@dataclass(frozen=True, slots=True)
class InputRequest:
    """A cell's ``input(prompt)`` or ``getpass(prompt)``; the latter asks for a ``password``, and the answer is not shown."""

    execution_id: str
    session: str
    prompt: str
    password: bool = False


OnInput = Callable[[InputRequest], str | Awaitable[str | None] | None]
"""A function that answers an input request. On None or an exception the cell gets an ``EOFError``. A plain function is called
in a thread."""
