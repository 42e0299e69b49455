"""What a value is shown as: of plain values only text comes, so that nothing else is looked up, ten times, for each of them."""

from __future__ import annotations

from typing import Any

from IPython.core.formatters import DisplayFormatter

_PLAIN = frozenset({bool, bytes, complex, dict, float, int, list, set, str, tuple, type(None)})
_OF_PLAIN = _PLAIN | {object}
_TEXT = "text/plain"


class Formatter(DisplayFormatter):
    """IPython's own, with the same outcome."""

    def format(self, obj: Any, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The representations of a value by their MIME types, and what is to be known of them."""
        if include or exclude or type(obj) not in _PLAIN or self._shows_plain_values():
            found: tuple[dict[str, Any], dict[str, Any]] = super().format(obj, include=include, exclude=exclude)
            return found
        text = self.formatters[_TEXT](obj)
        return ({} if text is None else {_TEXT: text}), {}

    def _shows_plain_values(self) -> bool:
        """Whether somebody has registered another representation of a plain value, or of any value."""
        others = [formatter for name, formatter in self.formatters.items() if name != _TEXT]
        return any(
            not formatter.type_printers.keys().isdisjoint(_OF_PLAIN)
            or any(module == "builtins" for module, _ in formatter.deferred_printers)
            for formatter in (self.ipython_display_formatter, self.mimebundle_formatter, *others)
        )
