"""Rules for cells against accidents: rules see only the text of a cell, so code can evade them on purpose.

The protection against evasive code is the container, or the confinement of a local kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.rules.policy.policy import CodeRules as CodeRules
    from kernelexec.rules.policy.policy import CommandRules as CommandRules
    from kernelexec.rules.policy.policy import Policy as Policy
    from kernelexec.rules.policy.refusal import Refusal as Refusal

_MODULES = {
    "CodeRules": "policy",
    "CommandRules": "policy",
    "Policy": "policy",
    "Refusal": "refusal",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
