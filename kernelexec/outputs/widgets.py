"""The state of a kernel's widgets (ipywidgets), with which a notebook shows them without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelexec.outputs.bundles import read_part
from kernelexec.results.readable import describe_widget

#: The bounds of all states of a kernel, in widgets and in bytes of memory; further ones are not followed.
_WIDGETS_MAX, _BYTES_MAX = 5000, 16 * 1024 * 1024
_ID_CHARS = 256
_MIME = "application/vnd.jupyter.widget-state+json"


def read_widget_state(content: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the id and the state in a message of a comm; None if it has no state, or an id that is no UUID."""
    data, comm_id = content.get("data"), content.get("comm_id")
    state = data.get("state") if isinstance(data, dict) else None
    return (comm_id, state) if isinstance(state, dict) and isinstance(comm_id, str) and len(comm_id) <= _ID_CHARS else None


class WidgetStates:
    """The models of a kernel's widgets, by the ids of their comms. Binary buffers are not followed."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._bytes = 0
        self._texts: dict[str, list[str]] = {}

    def update(self, comm_id: str, state: Mapping[str, Any]) -> None:
        """Set attributes of one widget; those that exceed the bounds stay as they are."""
        if comm_id not in self._states and len(self._states) >= _WIDGETS_MAX:
            return
        attributes = self._states.setdefault(comm_id, {})
        self._texts.pop(comm_id, None)
        for name, value in state.items():
            part = read_part(value)
            size = part.cost + len(name)
            grown = size - self._sizes.get((comm_id, name), 0)
            if self._bytes + grown <= _BYTES_MAX:
                attributes[str(name)] = part.value
                self._sizes[comm_id, name] = size
                self._bytes += grown

    def describe(self, comm_id: str) -> str:
        """Return the text of a widget and of those in it; an empty one if it has none."""
        return describe_widget(self._states, comm_id, self._texts)

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata ``widgets`` of a notebook, by the schema of Jupyter widgets; an empty one without widgets."""
        states = {
            comm_id: {
                "model_name": state["_model_name"],
                "model_module": state.get("_model_module"),
                "model_module_version": state.get("_model_module_version"),
                "state": dict(state),
            }
            for comm_id, state in self._states.items()
            if "_model_name" in state
        }
        return {_MIME: {"state": states, "version_major": 2, "version_minor": 0}} if states else {}
