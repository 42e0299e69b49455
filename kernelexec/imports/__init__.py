"""Quick imports: names of a package at their first use, and a program's modules without collections of garbage."""

from __future__ import annotations

from kernelexec.imports.collection import import_without_collection
from kernelexec.imports.lazy_names import make_getattr

__all__ = ["import_without_collection", "make_getattr"]
