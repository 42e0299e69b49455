"""What the libraries of a kernel leave out, because its owner does not need it: most of it takes longer than a cell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from ipykernel import ipkernel
from traitlets import TraitType
from traitlets.config import Config, Configurable


@cache
def take_shortcuts() -> None:
    """Have the libraries leave out what our owners do not need. What forks kernels does it once for all of them."""
    _leave_debugger_out()
    _look_once_at_signatures()
    _look_for_configuration_where_there_is_some()
    _look_traits_up_at_once()


def _leave_debugger_out() -> None:
    """Have ipykernel believe that there is no debugpy, which costs 150 ms and 10 MiB: only Jupyter's own clients debug."""
    absent: Any = ModuleType("ipykernel.debugger")
    absent.Debugger, absent._is_debugpy_available = object, False  # noqa: SLF001 - what ipykernel 7 asks there
    sys.modules.setdefault(absent.__name__, absent)


@contextmanager
def modules_left_out() -> Iterator[None]:
    """Let ipykernel's kernel, while it is made, see no modules.

    It makes a list of all their files for the debugger: to look at each copies 1400 pages of a forked kernel.
    """
    library: Any = ipkernel
    library.sys = _WithoutModules()
    try:
        yield
    finally:
        library.sys = sys


def _look_once_at_signatures() -> None:
    """Have ipykernel 7 remember which arguments a function takes, which it looks up for every cell (25 µs)."""
    library: Any = ipkernel
    look, known = library._accepts_parameters, WeakKeyDictionary[Any, Any]()  # noqa: SLF001 - there is no seam

    def accepts(function: Any, names: list[str]) -> Any:
        plain = getattr(function, "__func__", function)
        found = known.get(plain)
        if found is None or found.keys() != set(names):
            found = known[plain] = look(function, names)
        return found

    library._accepts_parameters = accepts  # noqa: SLF001 - as above


def _look_for_configuration_where_there_is_some() -> None:
    """Have traitlets load none for a class of which the configuration says nothing: one kernel makes over 60 objects."""
    base: Any = Configurable
    load, find, name = base._load_config, base._find_my_config, base.section_names.__func__  # noqa: SLF001 - as above
    known = WeakKeyDictionary[Any, frozenset[str] | None]()

    def names_of(kind: Any) -> frozenset[str] | None:
        """None where the class has ways of its own."""
        if kind not in known:
            plain = kind._find_my_config is find and kind.section_names.__func__ is name  # noqa: SLF001 - as above
            known[kind] = frozenset(kind.section_names()) if plain else None
        return known[kind]

    def load_some(self: Any, cfg: Config, *args: Any, **options: Any) -> None:
        names, above = names_of(type(self)), self.parent
        while above is not None and names is not None:
            names, above = names_of(type(above)) and names, above.parent
        if names is None or not names.isdisjoint(_sections(cfg)):
            load(self, cfg, *args, **options)

    base._load_config = load_some  # noqa: SLF001 - as above


def _look_traits_up_at_once() -> None:
    """Have traitlets look where a trait's value is kept before it calls what may make one: a cell asks 200 times.

    A kind of trait that has a way of its own to it keeps that.
    """
    library: Any = TraitType
    find, get = library.__get__, library.get

    def find_kept(self: Any, obj: Any, cls: Any = None) -> Any:
        try:
            if type(self).get is get:
                return obj._trait_values[self.name]  # noqa: SLF001 - as above
        except Exception:  # noqa: S110 - there is none yet, or the class is asked
            pass
        return find(self, obj, cls)

    library.__get__ = find_kept


def _sections(config: Any) -> Iterator[str]:
    """The names of all that may be sections, at any depth."""
    for name, found in config.items():
        if isinstance(found, dict):
            yield name
            yield from _sections(found)


class _WithoutModules:
    """Stands where a module has ``sys``."""

    modules: ClassVar[dict[str, ModuleType]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)
