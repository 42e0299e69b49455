"""Rules for cells: manners, not a wall. The container, or the confinement of a local kernel, is the wall.

Rules keep an agent from accidents. Code that means to get around them can, since they see only the text of a cell.
"""

from kernelexec.policy.code_rules import CodeRules
from kernelexec.policy.command_rules import CommandRules
from kernelexec.policy.policy import Policy
from kernelexec.policy.refusal import Refusal

__all__ = ["CodeRules", "CommandRules", "Policy", "Refusal"]
