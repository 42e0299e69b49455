"""The same names for callers without an event loop: every call goes through one anyio portal."""

from __future__ import annotations

from kernelexec.blocking.executor import Executor
from kernelexec.blocking.files import Files
from kernelexec.blocking.portal import Portal
from kernelexec.blocking.session import Session

__all__ = ["Executor", "Files", "Portal", "Session"]
