"""Blocking methods that are made from asynchronous ones."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kernelexec.blocking.portal import Portal
from kernelexec.errors import Closed

_P = ParamSpec("_P")
_R = TypeVar("_R")
_C = TypeVar("_C")


class Facade(Protocol):
    """An object whose blocking methods call those of its target through a portal."""

    _portal: Portal
    _target: Any


def make_blocking(
    method: Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]], *, cancels: bool = False
) -> Callable[Concatenate[Any, _P], _R]:
    """Return a blocking method, with the signature and docstring of an asynchronous one, that calls it through the portal.

    An interrupted caller leaves the call as it is, or cancels it if it ``cancels``.
    """
    name = method.__qualname__.removeprefix("Async")

    def call(facade: Facade, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        portal = facade._portal  # noqa: SLF001 - a method of the facade
        bound = partial(method, facade._target, *args, **kwargs)  # noqa: SLF001 - as above
        try:
            return portal.call_or_cancel(bound) if cancels else portal.call(bound)
        except TypeError as exc:
            if str(exc).startswith(f"Async{name}()"):  # the arguments are wrong
                raise TypeError(str(exc).removeprefix("Async")) from None
            raise

    update_wrapper(call, method)
    call.__qualname__ = name
    vars(call)["__signature__"] = inspect.signature(method)
    del vars(call)["__wrapped__"]  # with it, tools would show a coroutine function
    return call


def iterate(portal: Portal, items: AsyncGenerator[_R, None]) -> Iterator[_R]:
    """Yield the items of an asynchronous iterator, each through the portal; it is closed if the caller stops early."""
    try:
        with suppress(StopAsyncIteration):
            while True:
                yield portal.call_or_cancel(items.__anext__)
    finally:
        with suppress(Closed):
            portal.call(items.aclose)


def documented_as(asynchronous: type) -> Callable[[type[_C]], type[_C]]:
    """Return a decorator that replaces references to the asynchronous class by its docstrings, where ``help`` shows them."""

    def copy(facade: type[_C]) -> type[_C]:
        for name, member in vars(facade).items():
            if str(getattr(member, "__doc__", "")).startswith(f"See ``{asynchronous.__name__}.{name}``"):
                member.__doc__ = getattr(asynchronous, name).__doc__
        return facade

    return copy
