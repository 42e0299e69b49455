"""What may run: manners, not a wall. The container, or the confinement of a local kernel, is the wall.

Rules keep an agent from what it did not mean to do. Who means to get around them can: they see what a text says, and not what
a program does.
"""

from kernelexec.policy.commands import CommandRules, Refusal

__all__ = ["CommandRules", "Refusal"]
