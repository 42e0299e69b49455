"""MCP prompts: guidance for a session's model, and steps to debug a failed cell."""

from __future__ import annotations

from kernelexec.mcp.calls.sessions import SessionService
from kernelexec.mcp.tools.code_tools import report_errors


class ServerPrompts:
    """Prompts of the server, one method each. Clients show the first lines of the docstrings."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def guidance(self, session: str = "default") -> str:
        """Explain where a session's code runs, what is available there, and how to answer."""
        with report_errors():
            return await (await self._sessions.get_session(session)).guidance()

    async def debug(self, session: str = "default", execution_id: str = "") -> str:
        """Debug a failed cell in five steps, with all facts about it; by default the session's newest failed cell."""
        with report_errors():
            return await (await self._sessions.find_session(session)).debugging(execution_id or None)
