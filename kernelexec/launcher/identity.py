"""The names of classes by which libraries recognise Jupyter."""

from __future__ import annotations

from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def named_as_base(subclass: _Class) -> _Class:
    """Give a class the name and module of its base, as a decorator.

    Rich, tqdm, click, pandas and others look at the name or the module of the class of the shell or of ``sys.stdout``, and
    choose by it how they show progress, tables and colours.
    """
    base: type = subclass.__mro__[1]
    subclass.__name__, subclass.__qualname__, subclass.__module__ = base.__name__, base.__qualname__, base.__module__
    return subclass
