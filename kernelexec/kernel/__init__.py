"""One kernel: its life, its channels, the routing of its messages, and its death."""

from __future__ import annotations

from kernelexec.kernel.death import Death
from kernelexec.kernel.execution import End, Execution, unread
from kernelexec.kernel.input_request import Question
from kernelexec.kernel.kernel import Kernel
from kernelexec.kernel.one_shot import ask_kernel
from kernelexec.kernel.shutdown import Remaining

__all__ = ["Death", "End", "Execution", "Kernel", "Question", "Remaining", "ask_kernel", "unread"]
