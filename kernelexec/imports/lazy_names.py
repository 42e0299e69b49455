"""Names of a package that import their modules at their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

from kernelexec.imports.other_names import explain_name


def make_getattr(
    package: str, modules: Mapping[str, str], others: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: the package's ``__name__``.
        modules: the module of each public name, relative to the package. ``from package import name`` imports it, and so
            does the use of the module itself as an attribute of the package.
        others: names of other libraries, with what to write instead.
    """
    own = {module.partition(".")[0] for module in modules.values()}

    def find(name: str) -> object:
        if name in modules:
            value = getattr(import_module(f"{package}.{modules[name]}"), name)
        elif name in own:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{explain_name(others, name)}")
        setattr(sys.modules[package], name, value)
        return value

    return find
