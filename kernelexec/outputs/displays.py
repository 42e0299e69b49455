"""The displays of a kernel across cells, where an update reaches every display of an id; and the state of widgets.

Mime bundles are prepared for storage: portable JSON, long text cut, and the size of every part measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from kernelexec.results import DisplayData, ExecuteResult
from kernelexec.results.readable import describe_widget
from kernelexec.text import NESTING_MAX, clean, clean_text, count_elements, cut_middle, make_json_encoder, utf8_size

Display = DisplayData | ExecuteResult
#: The limit of known ids; the oldest are removed first.
IDS_MAX = 1000
#: The limit of displays that an update of an id changes; further displays keep their first content.
_SHOWN_MAX = 100
#: Bytes that updates of later cells may add to the displays of a result.
_LATER_BYTES = 640 * 1024
#: The bounds of all widget states of a kernel, in widgets and in bytes of memory; further states are ignored.
_WIDGETS_MAX, _BYTES_MAX = 5000, 16 * 1024 * 1024
_ID_CHARS = 256
_MIME = "application/vnd.jupyter.widget-state+json"
#: The cost of a display, and of each value of its JSON, in addition to its text, in bytes.
OVERHEAD_BYTES, _ITEM_BYTES = 256, 32
#: The representations of one display; a library has about five.
_TYPES_MAX = 100
_encode = make_json_encoder(separators=(",", ":"), allow_nan=False)


class Budget:
    """A limit in bytes for the total cost of a cell's displays."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    @property
    def remaining(self) -> int:
        """The bytes that are left."""
        return max(0, self.limit - self.spent)

    def spend(self, cost: int, *, always: bool = False) -> bool:
        """Spend a cost, or give back a negative cost; return False and spend nothing above the limit."""
        if cost > 0 and not always and self.spent + cost > self.limit:
            return False
        self.spent += cost
        return True


@dataclass(frozen=True, slots=True)
class DisplayBudgets:
    """The budgets of a cell's displays in the result, and in records, which have cut displays whole."""

    result: Budget
    record: Budget

    def finish(self) -> None:
        """Leave little room for updates after the cell's end: records are written, and the result's memory is counted."""
        self.result.limit = min(self.result.limit, self.result.spent + _LATER_BYTES)
        self.record.limit = 0


class DisplayEntry:
    """A display among the outputs of a cell; updates may still change the content.

    ``output`` is the display in the result, None without room there. ``recorded`` is the display in records, None if equal.
    """

    __slots__ = ("__weakref__", "_budgets", "_cost", "_record_cost", "is_dropped", "output", "recorded")

    def __init__(self, output: Display, budgets: DisplayBudgets, bundle: Bundle, whole: WholeBundles) -> None:
        self.output: Display | None = output
        self.recorded: Display | None = None
        self._budgets = budgets
        self._cost = self._record_cost = 0
        self.is_dropped = not self.update(bundle, whole)
        """Whether the result lacks the display, or an update of it."""
        if self.is_dropped:
            self.output = None

    @property
    def is_kept(self) -> bool:
        """Whether the display has room in the result or in records."""
        return self.output is not None or self.recorded is not None

    def update(self, bundle: Bundle, whole: WholeBundles) -> bool:
        """Replace the content as far as the budgets of the display's own cell allow; return whether the result has it."""
        before = self.output or self.recorded
        # A display without room at first gets none later. The cost is the difference to the old content, so an update by
        # smaller content always fits.
        fits = self.output is not None and self._budgets.result.spend(bundle.cost - self._cost)
        if fits and self.output is not None:
            self._cost = bundle.cost
            self.output = replace(self.output, data=bundle.data, metadata=bundle.metadata)
        self._budgets.record.spend(-self._record_cost)
        self._record_cost, room = 0, self._budgets.record.remaining
        if fits and (not bundle.dropped_bytes or not room):
            self.recorded = None
        elif room and before is not None:
            recorded = whole.within(room)
            self._record_cost = recorded.cost
            self._budgets.record.spend(recorded.cost, always=True)  # the smallest bundle may exceed the room: it has a notice
            self.recorded = replace(before, data=recorded.data, metadata=recorded.metadata)
        return fits


class Displays:
    """The displays of each id, by weak references: the outputs of cells own the displays."""

    def __init__(self) -> None:
        self._entries: dict[str, WeakSet[DisplayEntry]] = {}

    def __contains__(self, display_id: str) -> bool:
        return display_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, display_id: str, entry: DisplayEntry | None) -> None:
        """Register an id, and its display if there is an entry."""
        entries = self._entries.setdefault(display_id, WeakSet())
        if entry is not None and len(entries) < _SHOWN_MAX:
            entries.add(entry)
        while len(self._entries) > IDS_MAX:
            del self._entries[next(iter(self._entries))]

    def update(self, display_id: str, bundle: Bundle, whole: WholeBundles) -> int:
        """Replace the content of every display of the id; return how many lack room for this for the first time."""
        short = [shown for shown in self._entries.get(display_id, ()) if not shown.update(bundle, whole)]
        count = sum(not shown.is_dropped for shown in short)
        for shown in short:
            shown.is_dropped = True
        return count


def read_widget_state(content: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the id and the state in a message of a comm; None without a state, or with an id of over 256 characters."""
    data, comm_id = content.get("data"), content.get("comm_id")
    state = data.get("state") if isinstance(data, dict) else None
    return (comm_id, state) if isinstance(state, dict) and isinstance(comm_id, str) and len(comm_id) <= _ID_CHARS else None


class WidgetStates:
    """The models of a kernel's widgets, by the ids of their comms, without binary buffers."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, Any]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._bytes = 0
        self._texts: dict[str, list[str]] = {}

    def update(self, comm_id: str, state: Mapping[str, Any]) -> None:
        """Set attributes of a widget. At the bounds the widgets without updates for the longest time are forgotten."""
        attributes = self._states[comm_id] = self._states.pop(comm_id, {})  # to the end of the order
        self._texts.pop(comm_id, None)
        for name, value in state.items():
            part = read_part(value)
            size = part.cost + len(name)
            grown = size - self._sizes.get((comm_id, name), 0)
            self._make_room(self._bytes + grown)
            if self._bytes + grown <= _BYTES_MAX:
                attributes[str(name)] = part.value
                self._sizes[comm_id, name] = size
                self._bytes += grown

    def _make_room(self, wanted_bytes: int) -> None:
        """Forget old widgets while there are too many, or more than ``wanted_bytes``; the newest stays."""
        while len(self._states) > 1 and (len(self._states) > _WIDGETS_MAX or wanted_bytes > _BYTES_MAX):
            oldest = next(iter(self._states))
            self._texts.pop(oldest, None)
            freed = sum(self._sizes.pop((oldest, name)) for name in self._states.pop(oldest))
            self._bytes -= freed
            wanted_bytes -= freed

    def describe(self, comm_id: str) -> str:
        """Return the text of a widget and its children; empty if none of them has text."""
        return describe_widget(self._states, comm_id, self._texts)

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata ``widgets`` of a notebook, by the schema of Jupyter widgets; empty without widgets."""
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


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of a display. ``size`` is the text in bytes, ``cost`` the approximate memory in bytes."""

    data: dict[str, Any]
    metadata: dict[str, Any]
    size: int
    cost: int
    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A value of a bundle as portable JSON, with the size of the text and the approximate memory, in bytes."""

    value: Any
    size: int
    cost: int


def read_bundle(content: Mapping[str, Any], text_bytes: int) -> Bundle:
    """Return the bundle of a message's content; a text representation keeps ``text_bytes`` of its head and tail."""
    parts, left_out = _read_parts(content)
    cut = 0
    for name, part in parts.items():
        if name.startswith("text/") and isinstance(part.value, str) and part.size > text_bytes:
            parts[name] = read_part(cut_middle(part.value, text_bytes))
            cut += part.size - parts[name].size
    return _make_bundle(parts, _read_metadata(content), left_out, cut)


class WholeBundles:
    """The bundle of a message's content, whole or without its largest representations, read once for all callers.

    No representation is cut, since half a picture or half a page cannot be shown. The plain text names the missing types.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._bundles: list[Bundle] = []
        self._smaller = _read_smaller_bundles(content)

    def within(self, room_bytes: int) -> Bundle:
        """Return the largest bundle of at most ``room_bytes`` in cost; else the smallest bundle."""
        for bundle in self._bundles:
            if bundle.cost <= room_bytes:
                return bundle
        for bundle in self._smaller:
            self._bundles.append(bundle)
            if bundle.cost <= room_bytes:
                break
        return self._bundles[-1]


def _read_smaller_bundles(content: Mapping[str, Any]) -> Iterator[Bundle]:
    """Yield the whole bundle, then bundles with one representation less each, the largest first, until none is left."""
    parts, dropped = _read_parts(content)
    metadata, left_out = _read_metadata(content), list[str]()
    while True:
        plain = parts.get("text/plain")
        lines = [plain.value, *left_out] if plain is not None and isinstance(plain.value, str) else left_out
        named = {"text/plain": read_part("\n".join(lines))} if left_out else {}
        yield _make_bundle({**parts, **named}, metadata, dropped)
        if not parts:
            return
        largest = max(parts, key=lambda name: parts[name].size)
        left_out.append(f"[{largest} is left out: {parts.pop(largest).size} bytes]")


def _read_parts(content: Mapping[str, Any]) -> tuple[dict[str, Part], int]:
    """Return the representations by type, and the size in bytes of all beyond the limit of their number."""
    data = content.get("data")
    items = list(data.items()) if isinstance(data, dict) else []
    parts = {clean_text(str(mime)): read_part(value) for mime, value in items[:_TYPES_MAX]}
    return parts, sum(read_part(value).size for _, value in items[_TYPES_MAX:])


def _read_metadata(content: Mapping[str, Any]) -> Part:
    metadata = content.get("metadata")
    return read_part(metadata if isinstance(metadata, dict) else {})


def _make_bundle(parts: Mapping[str, Part], metadata: Part, left_out_bytes: int, cut_bytes: int = 0) -> Bundle:
    size = sum(part.size for part in parts.values()) + cut_bytes
    cost = OVERHEAD_BYTES + sum(part.cost + utf8_size(name) for name, part in parts.items()) + metadata.cost
    return Bundle({name: part.value for name, part in parts.items()}, metadata.value, size, cost, left_out_bytes + cut_bytes)


def read_part(value: Any) -> Part:  # noqa: ANN401 - JSON
    """Return a value of parsed JSON, cleaned and measured.

    The JSON encoder, in C, checks the parts of a container: a walk through millions of parts in Python takes seconds.
    """
    if not isinstance(value, dict | list):
        value = clean(value)
        size = utf8_size(value) if isinstance(value, str) else len(_encode(value))  # an integer may have 4,300 digits
        return Part(value, size, size + _ITEM_BYTES)
    text = _encode_portable(value)
    if text is None:
        value = clean(value)
        text = _encode(value)
    size = utf8_size(text)
    return Part(value, size, size + _ITEM_BYTES * count_elements(text))


def _encode_portable(value: Any) -> str | None:  # noqa: ANN401 - JSON
    """Return the JSON text of a value; None if the value must be cleaned first to be portable."""
    # Level by level, since the encoder recurses: a value nested deeper than NESTING_MAX must not reach it.
    level = [value]
    for _ in range(NESTING_MAX):
        items = [item for each in level for item in (each.values() if isinstance(each, dict) else each)]
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            break
    else:
        return None
    try:
        text = _encode(value)
        text.encode()
    except ValueError:  # NaN and infinity, or half a character
        return None
    return text
