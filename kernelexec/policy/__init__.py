"""Rules for cells, which prevent accidents: they see only the text of a cell, so code can evade them on purpose.

The protection against such code is the container, or the confinement of a local kernel.
"""

from kernelexec.policy.code_rules import CodeRules
from kernelexec.policy.command_rules import CommandRules
from kernelexec.policy.policy import Policy
from kernelexec.policy.refusal import Refusal

__all__ = ["CodeRules", "CommandRules", "Policy", "Refusal"]
