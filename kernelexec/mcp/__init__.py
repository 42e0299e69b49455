"""The MCP server: sessions as tools of the Model Context Protocol. Import fastmcp only when a server is made."""

from __future__ import annotations

from kernelexec.mcp.run import ServerFailed
from kernelexec.mcp.stdio import serve

__all__ = ["ServerFailed", "serve"]
