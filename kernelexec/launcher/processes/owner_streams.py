"""The standard streams of a command that the owner has, and commands that the owner runs."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol import CommandProcess

_OWNER_GONE = "The process that {} is gone: it is unknown how far the command came."
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
        """Return the next bytes of the standard input; none at the end.

        Raises:
            RuntimeError: another owner has taken over this kernel, and does not have them.
        """
        if not self._has_input:
            return b""
        answer = self._ask({"action": "read"})
        if "content" not in answer:
            raise RuntimeError(_OWNER_GONE.format("had the rest of the command's input"))
        self._has_input = answer.get("more") is True
        return b64decode(str(answer.get("content", "")))

    def _write(self, content: bytes) -> bool:
        """Pass on bytes of the standard output; return whether more is wanted."""
        return self._ask({"action": "write", "content": b64encode(content).decode()}).get("more") is True

    def run(self) -> int:
        """Run the command as its user, and return its exit code.

        Raises:
            RuntimeError: another owner has taken over this kernel, and did not start the command.
        """
        code = self._ask({"action": "run"}).get("exit_code")
        if not isinstance(code, int):
            raise RuntimeError(_OWNER_GONE.format("ran the command"))  # noqa: TRY004 - no argument of the caller
        return code

    def end(self) -> None:
        """End that process, and wait for its end."""
        self._ask({"action": "end"})
