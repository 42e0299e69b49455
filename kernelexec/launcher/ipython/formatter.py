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
        for formatter in (self.ipython_display_formatter, self.mimebundle_formatter, *others):
            if type(formatter).__module__ != DisplayFormatter.__module__:  # who knows what somebody's own one shows
                return True
            by_type, by_name = _printers(formatter)
            if by_type and not by_type.keys().isdisjoint(_OF_PLAIN):
                return True
            if by_name and any(module == "builtins" for module, _ in by_name):
                return True
        return False


def _printers(formatter: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What is registered by type and by name; traits are looked up where they are kept, for there are two dozens of them."""
    kept = formatter._trait_values  # noqa: SLF001 - traitlets has no quicker way
    try:
        return kept["type_printers"], kept["deferred_printers"]
    except KeyError:  # nobody has asked for them yet
        return formatter.type_printers, formatter.deferred_printers
