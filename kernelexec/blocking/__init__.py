"""The blocking API for callers without an event loop: every call goes through one portal."""

from __future__ import annotations

from kernelexec.blocking.blocking_executor import Executor
from kernelexec.blocking.blocking_files import Files
from kernelexec.blocking.blocking_session import Session
from kernelexec.blocking.portal import Portal

__all__ = ["Executor", "Files", "Portal", "Session"]
