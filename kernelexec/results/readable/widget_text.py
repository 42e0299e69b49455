"""Jupyter widgets (ipywidgets) as text: progress, labels and values instead of Python's representation of the first state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelexec.results.json_values import read_list
from kernelexec.results.readable.display_text import read_markup

_REFERENCE = "IPY_MODEL_"
#: Limits of the text of one view: widgets, and characters of a value.
_WIDGETS_MAX, _VALUE_CHARS = 200, 500


def describe_widget(states: Mapping[str, Mapping[str, Any]], model_id: str) -> str:
    """Return the text of a widget from the states of all widgets by their ids; an empty one if it shows no text."""
    return "\n".join(_describe(states, model_id, set()))


def _describe(states: Mapping[str, Mapping[str, Any]], model_id: str, seen: set[str]) -> list[str]:
    """Return the lines of a widget that no other box has shown yet."""
    state = states.get(model_id)
    if state is None or model_id in seen or len(seen) > _WIDGETS_MAX:
        return []
    seen.add(model_id)
    model = str(state.get("_model_name", ""))
    children = [child.removeprefix(_REFERENCE) for child in read_list(state.get("children")) if isinstance(child, str)]
    if children:
        titles = [*read_list(state.get("titles")), *[""] * len(children)]
        parts = ["\n".join(_describe(states, child, seen)) for child in children]
        lines = [f"{title}: {part}" if title else part for title, part in zip(titles, parts, strict=False) if part]
        return [" ".join(lines)] if model == "HBoxModel" else lines
    value, label = _read_value(model, state), state.get("description")
    texts = read_markup(label) if isinstance(label, str) else "", value
    return [": ".join(filter(None, texts))] if any(texts) else []


def _read_value(model: str, state: Mapping[str, Any]) -> str:
    value, labels, index = state.get("value"), read_list(state.get("_options_labels")), state.get("index")
    if "Progress" in model:
        return "/".join(f"{number:g}" for number in (value, state.get("max")) if isinstance(number, int | float))
    if labels:
        chosen = read_list(index) if isinstance(index, list) else [index]
        return ", ".join(str(labels[n]) for n in chosen if isinstance(n, int) and 0 <= n < len(labels))[:_VALUE_CHARS]
    if isinstance(value, str):
        return read_markup(value[:_VALUE_CHARS]) if model.startswith("HTML") else value[:_VALUE_CHARS]
    return "" if value is None else str(value)[:_VALUE_CHARS]
