"""The wire to a kernel that was told secrets: they are masked in all that it answers, before anybody has read it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelexec.kernel.wire.messages import Message, Wire
from kernelexec.kernel.wire.zmtp import Multipart
from kernelexec.secrets import SecretStore

#: What a collector masks by itself, since streams have to be put together for that.
_OUTPUTS = frozenset({"stream", "display_data", "execute_result", "update_display_data", "error", "clear_output", "status"})
#: What is ours, or is of the protocol, and never text of a user's: a secret that is part of it by chance changes no verdict.
_SPARED = frozenset({"status", "token", "known", "source", "file", "sha256", "found", "msg_id"})


class MaskedWire:
    """The same wire, but for what is read."""

    def __init__(self, wire: Wire | MaskedWire, store: SecretStore) -> None:
        self._wire = wire
        self._store = store

    def pack(self, msg_type: str, content: dict[str, Any], *, msg_id: str | None = None) -> tuple[str, list[bytes]]:
        """See ``Wire.pack``."""
        return self._wire.pack(msg_type, content, msg_id=msg_id)

    def read(self, multipart: Multipart) -> Message | None:
        """See ``Wire.read``."""
        message = self._wire.read(multipart)
        if message is None or message.msg_type in _OUTPUTS:
            return message
        return replace(message, content=self._masked(message.content), metadata=self._masked(message.metadata))

    def _masked(self, content: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._store.masker.value(content, keys=False, spared=_SPARED)
        return found
