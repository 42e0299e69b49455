"""The driver's end of one kernel: its process, its channels, the routing of its messages, and its death."""

from __future__ import annotations

from kernelexec.kernel.client import request_once
from kernelexec.kernel.death import Death
from kernelexec.kernel.execution import End, Execution, is_unread
from kernelexec.kernel.input_request import InputRequestMessage
from kernelexec.kernel.kernel import Kernel
from kernelexec.kernel.shutdown import ReuseSlot

__all__ = ["Death", "End", "Execution", "InputRequestMessage", "Kernel", "ReuseSlot", "is_unread", "request_once"]
