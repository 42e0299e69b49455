"""The standard streams of a command that the owner has, and commands that the owner runs."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import CommandProcess

#: Sends a question to the owner, and returns its answer.
AskOwner = Callable[[dict[str, Any]], Mapping[str, Any]]


class OwnerStreams:
    """The owner's side of one command; ``read`` and ``write`` are None for streams that are the kernel's."""

    def __init__(self, ask: AskOwner, process: CommandProcess) -> None:
        self._ask = ask
        self._has_input = True
        self.read = self._read if process["reads_owner"] else None
        self.write = self._write if process["writes_owner"] else None

    def _read(self) -> bytes:
        """Return the next bytes of the standard input; none at the end."""
        if not self._has_input:
            return b""
        answer = self._ask({"action": "read"})
        self._has_input = answer.get("more") is True
        return b64decode(str(answer.get("content", "")))

    def _write(self, content: bytes) -> bool:
        """Pass on bytes of the standard output; return whether more is wanted."""
        return self._ask({"action": "write", "content": b64encode(content).decode()}).get("more") is True

    def run(self) -> int:
        """Run the command as its user, and return its exit code."""
        code = self._ask({"action": "run"}).get("exit_code")
        return code if isinstance(code, int) else 1

    def end(self) -> None:
        """End that process, and wait for its end."""
        self._ask({"action": "end"})
