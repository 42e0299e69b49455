"""What commands print and what functions do, as far as their words say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kernelexec.policy.shell.expansion import UNKNOWN, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_SILENT = frozenset(["cd", "export", "true", ":", "set", "mkdir", "touch", "rm", "sleep", "exec"])


def printed_by(words: Sequence[str], stdin: str | None) -> str:
    """What a command prints, where that is known."""
    match list(words):
        case ["echo", *rest]:
            plain = [word for place, word in enumerate(rest) if not (place == 0 and word in ("-n", "-e", "-en", "-ne", "-E"))]
            text = " ".join(plain) + "\n"
            return UNKNOWN if "\\" in text and len(plain) != len(rest) else text
        case ["printf", "%s" | "%s\\n" | "%s\n", text]:
            return text
        case ["printf", text] if "%" not in text and "\\" not in text:
            return text
        case ["cat"] | ["cat", "-"] | ["tee", *_]:
            return UNKNOWN if stdin is None else stdin
        case ["which", name] | ["command", "-v", name] | ["type", "-p" | "-P", name]:
            return f"{name}\n"
    return UNKNOWN if words and words[0] not in _SILENT else ""


def multiplies(name: str, body: Node) -> bool:
    """Whether a function calls itself in the background, or more than once at a time."""
    calls = list(_calls(name, body))
    behind = any(following is not None and following.type == "&" for call in calls for following in _followers(call, body))
    piped = any(call.parent is not None and call.parent.type == "pipeline" for call in calls)
    return bool(calls) and (behind or (piped and len(calls) > 1))


def _calls(name: str, node: Node) -> Iterator[Node]:
    if node.type == "command" and (called := node.child_by_field_name("name")) is not None and text_of(called) == name:
        yield node
    for child in node.named_children:
        yield from _calls(name, child)


def _followers(node: Node, upto: Node) -> Iterator[Node | None]:
    current: Node | None = node
    while current is not None and current != upto:
        yield current.next_sibling
        current = current.parent
