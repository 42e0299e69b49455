"""Prompts that a client can take from the server: what a session's model should know, and how it mends a failed cell."""

from __future__ import annotations

from kernelexec.mcp.calls.sessions import Calls
from kernelexec.mcp.tools.code import refusing


class Prompts:
    """The prompts, one method each, for one executor's sessions. Clients show their first lines."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def guidance(self, session: str = "default") -> str:
        """Say where a session's code runs, what it finds there, and what belongs into an answer."""
        with refusing():
            return await (await self._calls.session(session)).guidance()

    async def debug(self, session: str = "default", execution_id: str = "") -> str:
        """Ask for a failed cell, the session's newest by default, to be mended in five steps, with all that is known of it."""
        with refusing():
            return await self._calls.open_session(session).debugging(execution_id or None)
