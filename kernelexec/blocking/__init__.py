"""The blocking API for callers without an event loop: every call goes through one portal."""

from __future__ import annotations

from kernelexec.blocking.facades import Executor, Files, Session
from kernelexec.blocking.portal import Portal

__all__ = ["Executor", "Files", "Portal", "Session"]
