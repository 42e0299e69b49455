"""One kernel: its life, its channels, the routing of its messages, and its death."""

from __future__ import annotations

from kernelexec.kernel.death import Death
from kernelexec.kernel.ending import Remaining
from kernelexec.kernel.execution import End, Execution, unread
from kernelexec.kernel.kernel import Kernel
from kernelexec.kernel.questions import Question
from kernelexec.kernel.visit import ask_kernel

__all__ = ["Death", "End", "Execution", "Kernel", "Question", "Remaining", "ask_kernel", "unread"]
