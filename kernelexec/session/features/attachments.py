"""The clients in other processes that are attached to a session, and what its owner learns of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

logger = logging.getLogger("kernelexec")
#: The client in another process that makes the current call; None for the owner.
calling_client: ContextVar[str | None] = ContextVar("calling_client", default=None)


class Attachments:
    """The attached clients of one session. The owner's next result names new ones, and counts their cells."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._held: dict[object, str] = {}
        self._new: dict[str, None] = {}
        self._cells: dict[str, int] = {}
        self._returned: dict[str, None] = {}

    @property
    def clients(self) -> tuple[str, ...]:
        """The attached clients, the oldest first."""
        return tuple(dict.fromkeys(self._held.values()))

    @contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Count a client as attached within the block."""
        hold, extra = object(), {"session": self._session, "client": client}
        self._held[hold], self._new[client] = client, None
        logger.info("kernelexec.client_attached", extra=extra)
        try:
            yield
        finally:
            del self._held[hold]
            logger.info("kernelexec.client_detached", extra=extra)

    def note_return(self, client: str) -> None:
        """Note that a client has gone back to an earlier state of the session."""
        self._returned[client] = None

    def take_notes(self) -> list[str]:
        """Count a cell of a client; for the owner's cell, return the notes about clients since the last one."""
        if (client := calling_client.get()) is not None:
            self._cells[client] = self._cells.get(client, 0) + 1
            return []
        notes = [f"{name} has attached to this session: its cells run in turn with yours." for name in self._new]
        for name, count in self._cells.items():
            notes.append(f"{count} cell{'s' * (count > 1)} of {name} ran here since your last one.")
        notes += [f"{name} has gone back to an earlier state of this session." for name in self._returned]
        self._new, self._cells, self._returned = {}, {}, {}
        return notes
