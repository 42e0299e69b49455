"""What may run: manners, not a wall. The container, or the confinement of a local kernel, is the wall.

Rules keep an agent from what it did not mean to do. Who means to get around them can: they see what a text says, and not what
a program does.
"""

from kernelexec.policy.code import CodeRules
from kernelexec.policy.commands import CommandRules
from kernelexec.policy.judge import Judge
from kernelexec.policy.refusal import Refusal

__all__ = ["CodeRules", "CommandRules", "Judge", "Refusal"]
