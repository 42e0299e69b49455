"""Rules for cells: manners, not a wall. The container, or the confinement of a local kernel, is the wall.

Rules keep an agent from accidents. Code that means to get around them can, since they see only the text of a cell.
"""

from kernelexec.policy.code import CodeRules
from kernelexec.policy.commands import CommandRules
from kernelexec.policy.judge import Judge
from kernelexec.policy.refusal import Refusal

__all__ = ["CodeRules", "CommandRules", "Judge", "Refusal"]
