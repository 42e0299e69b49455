"""The driver's end of a kernel: process, channels, routing of messages, and death."""

from __future__ import annotations

from kernelexec.kernel.client import request_once
from kernelexec.kernel.execution import CommandRequestMessage, End, Execution, InputRequestMessage, is_unread
from kernelexec.kernel.kernel import Kernel
from kernelexec.kernel.process import Death, ReuseSlot

__all__ = [
    "CommandRequestMessage",
    "Death",
    "End",
    "Execution",
    "InputRequestMessage",
    "Kernel",
    "ReuseSlot",
    "is_unread",
    "request_once",
]
