"""Values are shown as IPython shows them, also where somebody registered more than text for plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

from kernelexec.launcher.ipython.formatter import Formatter


class Rich:
    """A value with more than text."""

    def _repr_html_(self) -> str:
        return "<b>rich</b>"


class OwnInt(int):
    """A number with more than text."""

    def _repr_html_(self) -> str:
        return f"<i>{int(self)}</i>"


class Unshowable:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise ValueError


VALUES = [1, 1.5, "a\n", b"a", None, True, [1] * 100, {"a": {1, 2}}, (1,), 1j, Rich(), OwnInt(1), [Unshowable()], object]
REGISTERED: dict[str, Callable[[DisplayFormatter], object]] = {
    "nothing": lambda _: None,
    "a type": lambda made: made.formatters["text/html"].for_type(int, lambda n: f"<u>{n}</u>"),
    "by name": lambda made: made.formatters["text/html"].for_type_by_name("builtins", "int", lambda n: f"<u>{n}</u>"),
    "any value": lambda made: made.formatters["text/latex"].for_type(object, lambda _: "$x$"),
    "a bundle": lambda made: made.mimebundle_formatter.for_type(str, lambda s, **_: {"text/markdown": s}),
    "itself": lambda made: made.ipython_display_formatter.for_type(list, lambda _: True),
    "other text": lambda made: made.formatters["text/plain"].for_type(int, lambda n, p, _: p.text(f"number {n}")),
    "no text": lambda made: setattr(made.formatters["text/plain"], "enabled", False),
}


@pytest.mark.parametrize("register", REGISTERED.values(), ids=REGISTERED)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_it_shows_what_ipython_shows(value: object, register: Callable[[Any], object]) -> None:
    ours: Any = Formatter()
    theirs: Any = DisplayFormatter()
    for made in (ours, theirs):
        register(made)
    for options in ({}, {"include": ["text/html"]}, {"exclude": ["text/plain"]}):
        assert ours.format(value, **options) == theirs.format(value, **options)


def test_a_formatter_of_somebodys_own_is_asked_for_every_value() -> None:
    class Own:
        format_type, enabled = "text/x-own", True

        def __call__(self, obj: object) -> str:
            return f"own {obj}"

    made: Any = Formatter()
    made.formatters["text/x-own"] = Own()
    assert made.format(1) == ({"text/plain": "1", "text/x-own": "own 1"}, {})
