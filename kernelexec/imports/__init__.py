"""Quick imports, and the errors of missing names."""

from __future__ import annotations

from kernelexec.imports.collection import import_without_collection
from kernelexec.imports.names import explain_attribute, explain_keywords, make_getattr

__all__ = ["explain_attribute", "explain_keywords", "import_without_collection", "make_getattr"]
