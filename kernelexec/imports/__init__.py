"""Quick imports, and the errors of missing names."""

from __future__ import annotations

from kernelexec.imports.collection import import_without_collection
from kernelexec.imports.lazy_names import make_getattr
from kernelexec.imports.other_names import explain_attribute, explain_keywords

__all__ = ["explain_attribute", "explain_keywords", "import_without_collection", "make_getattr"]
