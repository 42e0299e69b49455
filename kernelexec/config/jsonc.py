"""Putting one entry into a JSON file of a person's, whose comments, trailing commas and layout stay as they are.

The text is read once, strictly but for these two, only to learn where its parts are. The entry is put in as text, and the
result is read again: it must be what was there with the entry, or nothing is given back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])|(?:true|false|null)\b")
_STEP = "  "


class Malformed(ValueError):
    """The text cannot be read, or what is there has another form than is expected: the line, and what is wrong with it."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line
        self.why = why


@dataclass(frozen=True, slots=True)
class _Node:
    """One value and where it stands; of an object, also its members."""

    start: int
    end: int
    value: Any
    members: Mapping[str, _Node] | None = None
    comma: bool = False
    """Whether a comma stands behind the last member."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text

    def whole(self) -> _Node:
        found = self.value(self.blank(0))
        if (end := self.blank(found.end)) < len(self.text):
            raise self.wrong(end, "there is more behind the end")
        return found

    def wrong(self, at: int, why: str) -> Malformed:
        return Malformed(self.text.count("\n", 0, at) + 1, why)

    def blank(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at

    def value(self, at: int) -> _Node:
        match self.text[at : at + 1]:
            case "{":
                return self.object(at)
            case "[":
                return self.array(at)
            case _:
                return self.plain(at)

    def plain(self, at: int) -> _Node:
        if (found := _STRING.match(self.text, at) or _PLAIN.match(self.text, at)) is None:
            raise self.wrong(at, "a value is expected" if at < len(self.text) else "it ends too early")
        return _Node(at, found.end(), json.loads(found[0]))

    def object(self, start: int) -> _Node:
        members: dict[str, _Node] = {}
        at, comma = self.blank(start + 1), False
        while self.text[at : at + 1] != "}":
            if members and not comma:
                raise self.wrong(at, "a comma or } is expected")
            if (name := _STRING.match(self.text, at)) is None:
                raise self.wrong(at, 'a name in "" is expected' if at < len(self.text) else "it ends too early")
            if (key := json.loads(name[0])) in members:
                raise self.wrong(at, f"{key!r:.50} is there twice")
            at = self.blank(name.end())
            if self.text[at : at + 1] != ":":
                raise self.wrong(at, f"a colon is expected behind {key!r:.50}")
            members[key] = self.value(self.blank(at + 1))
            at, comma = self.behind(members[key].end)
        return _Node(start, at + 1, {key: node.value for key, node in members.items()}, members, comma)

    def array(self, start: int) -> _Node:
        found: list[Any] = []
        at, comma = self.blank(start + 1), False
        while self.text[at : at + 1] != "]":
            if found and not comma:
                raise self.wrong(at, "a comma or ] is expected")
            node = self.value(at)
            found.append(node.value)
            at, comma = self.behind(node.end)
        return _Node(start, at + 1, found)

    def behind(self, end: int) -> tuple[int, bool]:
        at = self.blank(end)
        comma = self.text[at : at + 1] == ","
        return (self.blank(at + 1) if comma else at), comma


def parsed(text: str) -> Any:  # noqa: ANN401 - any JSON
    """The value of a text that may have comments and trailing commas.

    Raises:
        Malformed: it is none.
    """
    return _read(text).value


def with_entry(text: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    """The text with an entry in an object of its outermost one, in the place of one of that name; all else as it was.

    Raises:
        Malformed: it cannot be read, or has no such form.
    """
    if not text.strip():
        return json.dumps({section: {name: entry}}, indent=2, ensure_ascii=False) + "\n"
    root = _read(text)
    if root.members is None:
        raise Malformed(1, "an object is expected")
    servers = root.members.get(section)
    if servers is None:
        made = _added(text, root, section, {name: entry})
    elif servers.members is None:
        raise Malformed(text.count("\n", 0, servers.start) + 1, f"{section}: an object is expected")
    elif name in servers.members:
        old = servers.members[name]
        made = text[: old.start] + _shown(text, entry, _indent(text, old.start)) + text[old.end :]
    else:
        made = _added(text, servers, name, entry)
    if parsed(made) != root.value | {section: root.value.get(section, {}) | {name: dict(entry)}}:
        raise Malformed(1, "it has a form that an entry cannot be put into")
    return made


def _read(text: str) -> _Node:
    try:
        return _Reader(text).whole()
    except RecursionError:
        raise Malformed(1, "it is nested too deeply") from None


def _added(text: str, target: _Node, name: str, value: Mapping[str, Any]) -> str:
    """The text with one more member at the end of an object."""
    assert target.members is not None
    close = target.end - 1
    end = target.start + len(text[target.start : close].rstrip())  # of all that stands in it, comments too
    own = _indent(text, target.start)
    first = next(iter(target.members.values()), None)
    indent = own + _step(text) if first is None else _indent(text, first.start)
    several = "\n" in text[target.start : close]
    member = f"{json.dumps(name, ensure_ascii=False)}: {_shown(text, value, indent if several or first is None else own)}"
    before, between = text[:end], ""
    if target.members:
        last = list(target.members.values())[-1].end
        between = "," if target.comma else ""
        before = text[:end] if target.comma else f"{text[:last]},{text[last:end]}"
    if several or first is None:
        line = _line(text)
        rest = text[end:close] if several else f"{line}{own}"
        return f"{before}{line}{indent}{member}{between}{rest}{text[close:]}"
    return f"{before} {member}{between}{text[end:]}"


def _shown(text: str, value: Mapping[str, Any], indent: str) -> str:
    step = _step(text)
    lines = json.dumps(value, indent=step, ensure_ascii=False).split("\n")
    return f"{_line(text)}{indent}".join(lines)


def _line(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _indent(text: str, at: int) -> str:
    """What the line begins with in which that stands."""
    begun = text.rfind("\n", 0, at) + 1
    found = re.compile(r"[ \t]*").match(text, begun)
    return found[0] if found else ""


def _step(text: str) -> str:
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else _STEP
