"""Jupyter widgets (ipywidgets) as text: progress, labels and values instead of Python's representation of the first state."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from reprlib import Repr
from typing import Any

from kernelexec.results.json_values import read_list
from kernelexec.results.readable.display_text import read_markup

_REFERENCE = "IPY_MODEL_"
#: Limits of the text of one view: widgets, characters of a value or a label, its tags, and choices of a list.
_WIDGETS_MAX, _VALUE_CHARS, _VALUE_TAGS, _CHOICES_MAX = 200, 500, 50, 20
_PARTS = Repr()
_PARTS.maxlist = _PARTS.maxdict = _CHOICES_MAX
_PARTS.maxlong = _PARTS.maxother = _VALUE_CHARS


def describe_widget(
    states: Mapping[str, Mapping[str, Any]], model_id: str, texts: MutableMapping[str, list[str]] | None = None
) -> str:
    """Return the text of a widget from the states of all widgets by their ids; an empty one if it shows no text.

    ``texts`` keeps what was read of single widgets for the next call.
    """
    return "\n".join(_describe(states, model_id, set(), {} if texts is None else texts))


def _describe(
    states: Mapping[str, Mapping[str, Any]], model_id: str, seen: set[str], texts: MutableMapping[str, list[str]]
) -> list[str]:
    """Return the lines of a widget that no other box has shown yet."""
    state = states.get(model_id)
    if state is None or model_id in seen or len(seen) > _WIDGETS_MAX:
        return []
    seen.add(model_id)
    model = str(state.get("_model_name", ""))
    children = [child.removeprefix(_REFERENCE) for child in read_list(state.get("children")) if isinstance(child, str)]
    if children:
        titles = [*read_list(state.get("titles")), *[""] * len(children)]
        parts = ["\n".join(_describe(states, child, seen, texts)) for child in children]
        lines = [f"{_shorten(title)}: {part}" if title else part for title, part in zip(titles, parts, strict=False) if part]
        return [" ".join(lines)] if model == "HBoxModel" else lines
    if model_id not in texts:
        parts = list(filter(None, (_read_text(state.get("description")), _read_value(model, state))))
        texts[model_id] = [": ".join(parts)] if parts else []
    return texts[model_id]


def _read_value(model: str, state: Mapping[str, Any]) -> str:
    value, labels, index = state.get("value"), read_list(state.get("_options_labels")), state.get("index")
    if "Progress" in model:
        return "/".join(_format_number(number) for number in (value, state.get("max")) if isinstance(number, int | float))
    if labels:
        chosen = read_list(index)[:_CHOICES_MAX] if isinstance(index, list) else [index]
        return ", ".join(_shorten(labels[n]) for n in chosen if isinstance(n, int) and 0 <= n < len(labels))[:_VALUE_CHARS]
    return _read_text(value) if model.startswith("HTML") else _shorten(value)


def _shorten(value: object) -> str:
    """Return the head of a text, nothing for None, and any other value without most of its parts."""
    if isinstance(value, str):
        return value[:_VALUE_CHARS]
    return "" if value is None else _PARTS.repr(value)[:_VALUE_CHARS]


def _read_text(markup: object) -> str:
    return read_markup(markup[:_VALUE_CHARS], _VALUE_TAGS) if isinstance(markup, str) else ""


def _format_number(number: float) -> str:
    """Return a number in six digits; one that no float can hold is shown by the number of its own."""
    try:
        return f"{number:g}"
    except OverflowError:
        return f"about 10^{len(str(number)) - 1}"
