"""Facts about commands that their words alone show: their output, and functions that multiply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kernelexec.policy.shell.expansion import UNKNOWN, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_SILENT = frozenset(["cd", "export", "true", ":", "set", "mkdir", "touch", "rm", "sleep", "exec"])


def known_stdout(words: Sequence[str], stdin: str | None) -> str:
    """Return the output of a command, or ``UNKNOWN`` where its words do not show it."""
    match list(words):
        case ["echo", *rest]:
            options = rest[:1] if rest[:1] in (["-n"], ["-e"], ["-en"], ["-ne"], ["-E"]) else []
            text = " ".join(rest[len(options) :]) + "\n"
            return UNKNOWN if options and "\\" in text else text
        case ["printf", "%s" | "%s\\n" | "%s\n", text]:
            return text
        case ["printf", text] if "%" not in text and "\\" not in text:
            return text
        case ["cat"] | ["cat", "-"] | ["tee", *_]:
            return UNKNOWN if stdin is None else stdin
        case ["which", name] | ["command", "-v", name] | ["type", "-p" | "-P", name]:
            return f"{name}\n"
    return UNKNOWN if words and words[0] not in _SILENT else ""


def is_fork_bomb(name: str, body: Node) -> bool:
    """Tell whether a function calls itself in the background, or more than once at a time."""
    calls = list(_calls(name, body))
    in_background = any(sibling is not None and sibling.type == "&" for call in calls for sibling in _siblings(call, body))
    in_pipe = any(call.parent is not None and call.parent.type == "pipeline" for call in calls)
    return bool(calls) and (in_background or (in_pipe and len(calls) > 1))


def _calls(name: str, node: Node) -> Iterator[Node]:
    if node.type == "command" and (called := node.child_by_field_name("name")) is not None and text_of(called) == name:
        yield node
    for child in node.named_children:
        yield from _calls(name, child)


def _siblings(node: Node, upto: Node) -> Iterator[Node | None]:
    """Yield the node that follows this one, and those that follow the nodes around it."""
    current: Node | None = node
    while current is not None and current != upto:
        yield current.next_sibling
        current = current.parent
