"""Sessions as tools of the Model Context Protocol. What needs fastmcp is imported when a server is made, not before."""

from __future__ import annotations

from kernelexec.mcp.run import Broken
from kernelexec.mcp.stdio import serve

__all__ = ["Broken", "serve"]
