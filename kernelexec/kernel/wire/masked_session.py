"""A message session that masks secrets in the messages of a kernel that has them, before any other code reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelexec.kernel.wire.messages import Message, MessageSession
from kernelexec.kernel.wire.zmtp import Multipart
from kernelexec.secrets import SecretStore

#: Messages that a collector masks by itself, since parts of a stream have to be joined for that.
_OUTPUTS = frozenset({"stream", "display_data", "execute_result", "update_display_data", "error", "clear_output", "status"})
#: Fields of the protocol that never hold a user's text: a secret that is part of one by chance must change no verdict.
_SPARED = frozenset({"status", "token", "known", "source", "file", "sha256", "found", "msg_id"})


class MaskingSession:
    """A ``MessageSession`` whose received messages are masked."""

    def __init__(self, session: MessageSession | MaskingSession, secrets: SecretStore) -> None:
        self._session = session
        self._secrets = secrets

    def pack(self, msg_type: str, content: dict[str, Any], *, msg_id: str | None = None) -> tuple[str, list[bytes]]:
        """Pack a request: see ``MessageSession.pack``."""
        return self._session.pack(msg_type, content, msg_id=msg_id)

    def read(self, multipart: Multipart) -> Message | None:
        """Read a message: see ``MessageSession.read``."""
        message = self._session.read(multipart)
        if message is None or message.msg_type in _OUTPUTS:
            return message
        return replace(message, content=self._masked(message.content), metadata=self._masked(message.metadata))

    def _masked(self, content: dict[str, Any]) -> dict[str, Any]:
        masked: dict[str, Any] = self._secrets.masker.mask_value(content, keys=False, spared=_SPARED)
        return masked
