"""Packages of a session: requirements and their lock, installations, and those before the first cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.session.features.packages.requirements import LockedPackage as LockedPackage
    from kernelexec.session.features.packages.requirements import PackageLock as PackageLock
    from kernelexec.session.features.packages.requirements import check_requirements as check_requirements
    from kernelexec.session.features.packages.requirements import find_requirements_file as find_requirements_file
    from kernelexec.session.features.packages.requirements import is_wheel as is_wheel
    from kernelexec.session.features.packages.requirements import normalize_name as normalize_name

_NAMES = ("LockedPackage", "PackageLock", "check_requirements", "find_requirements_file", "is_wheel", "normalize_name")
_MODULES = dict.fromkeys(_NAMES, "requirements")
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
