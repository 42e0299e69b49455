"""The blocking API for callers without an event loop: every call goes through a portal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.executor.blocking.attached import AttachedSession as AttachedSession
    from kernelexec.executor.blocking.attached import attach as attach
    from kernelexec.executor.blocking.executor import Executor as Executor
    from kernelexec.executor.blocking.parts import Checkpoint as Checkpoint
    from kernelexec.executor.blocking.parts import Files as Files
    from kernelexec.executor.blocking.portal import Portal as Portal
    from kernelexec.executor.blocking.portal import await_target as await_target
    from kernelexec.executor.blocking.portal import call_target as call_target
    from kernelexec.executor.blocking.session import Session as Session

_MODULES = {
    "AttachedSession": "attached",
    "Checkpoint": "parts",
    "Executor": "executor",
    "Files": "parts",
    "Portal": "portal",
    "Session": "session",
    "attach": "attached",
    "await_target": "portal",
    "call_target": "portal",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
