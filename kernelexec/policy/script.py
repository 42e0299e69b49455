"""What a script for a shell runs: its simple commands, however deep they stand, with the words that each would get.

The script is followed as far as its text says what it does: constants that it assigns, loops over words, functions that it
calls, text that it pipes on. What only the running shell can know stays marked as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from kernelexec.policy.unread import Unread
from kernelexec.policy.words import UNKNOWN, Words, text_of

_COMMANDS_MAX, _DEPTH_MAX, _LOOP_MAX = 2000, 60, 32
_WRITES = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
_JOINED_TO_NOTHING = re.compile(r"(?:\\\n\s*)+\Z")
_SILENT = frozenset(["cd", "export", "true", ":", "set", "mkdir", "touch", "rm", "sleep", "exec"])
#: What a shell knows before a script says anything.
_BEFORE = {"IFS": " \t\n", "HOME": "~"}


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: its words after all expansion, the files it writes to by redirection, and what it reads.

    ``stdin`` is the text that it gets, None where it gets none from this script.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    stdin: str | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """What a script runs; ``bombs`` are names of functions that call themselves without end, in more than one process."""

    commands: tuple[Command, ...]
    bombs: tuple[str, ...]


def read(text: str, *arguments: str) -> Script:
    """What a script runs, called with these arguments: the first one is its name.

    Raises:
        Unread: it is not the language of bash, or too much of it.
    """
    tree = _parser().parse(_JOINED_TO_NOTHING.sub("", text).encode("utf-8", "replace"))
    if tree.root_node.has_error:
        line = _first_error(tree.root_node).start_point.row + 1
        raise Unread(f"line {line} is not understood as the language of bash")
    reader = _Reader({str(place): argument for place, argument in enumerate(arguments)})
    reader.walk(tree.root_node)
    return Script(tuple(reader.commands), tuple(reader.bombs))


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _first_error(node: Node) -> Node:
    if node.is_error or node.is_missing:
        return node
    return next((_first_error(child) for child in node.children if child.has_error or child.is_missing), node)


class _Reader:
    def __init__(self, arguments: dict[str, str]) -> None:
        self.commands: list[Command] = []
        self.bombs: list[str] = []
        self._variables = _BEFORE | arguments
        self._functions: dict[str, Node] = {}
        self._words = Words(self._variables, self._output_of)
        self._depth = 0

    def walk(self, node: Node, writes: tuple[str, ...] = (), stdin: str | None = None) -> str:
        """Follow a part of the script; what it prints, as far as that is known."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise Unread("its parts stand too deep in each other")
        try:
            follow = getattr(self, f"_{node.type}", self._others)
            printed: str = follow(node, writes, stdin)
        finally:
            self._depth -= 1
        return printed

    def _others(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        printed = [self.walk(child, writes, stdin) for child in node.named_children]
        return "".join(printed)

    def _comment(self, *_: object) -> str:
        return ""

    _heredoc_start = _heredoc_end = _word = _variable_name = _number = _raw_string = _ansi_c_string = _comment

    def _string(self, node: Node, *_: object) -> str:
        self._words.fields(node)
        return ""

    _concatenation = _simple_expansion = _expansion = _translated_string = _arithmetic_expansion = _string
    _process_substitution = _command_substitution = _string

    def _output_of(self, node: Node) -> str:
        """What the commands within ``$( )`` or ``<( )`` print, without the line ends after it."""
        printed = self._others(node, (), None)
        return f"/dev/fd/{UNKNOWN}" if node.type == "process_substitution" else printed.rstrip("\n")

    def _variable_assignment(self, node: Node, *_: object) -> str:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return ""
        text = "" if value is None else self._words.text(value) if value.type != "array" else self._array(value)
        appends = any(child.type == "+=" for child in node.children)
        self._variables[text_of(name)] = self._variables.get(text_of(name), "") + text if appends else text
        return ""

    def _array(self, node: Node) -> str:
        for child in node.named_children:
            self._words.fields(child)
        return UNKNOWN

    def _command(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        words, end = list[str](), -1
        for child in node.children:
            match child.type:
                case "variable_assignment":
                    self._variable_assignment(child)
                case "file_redirect":
                    writes += self._written(child)
                case "herestring_redirect":
                    stdin = self._here_string(child)
                case _:
                    if child.start_byte == end:  # no blank between two words: the grammar took one for two
                        raise Unread(f"it is not clear where a word ends: {text_of(node)[:40]}")
                    words += self._words.fields(child)
                    end = child.end_byte
        return self._run(words, writes, stdin)

    def _declaration_command(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        words = [text_of(node.children[0])]
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._variable_assignment(child)
                words.append(text_of(child))
            else:
                words += self._words.fields(child)
        return self._run(words, writes, stdin)

    def _unset_command(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        words = [text_of(node.children[0]), *(field for child in node.named_children for field in self._words.fields(child))]
        for name in words[1:]:
            self._variables.pop(name, None)
        return self._run(words, writes, stdin)

    def _run(self, words: Sequence[str], writes: tuple[str, ...], stdin: str | None) -> str:
        if not words and not writes:
            return ""
        if len(self.commands) >= _COMMANDS_MAX:
            raise Unread(f"it runs more than {_COMMANDS_MAX} commands")
        self.commands.append(Command(tuple(words), writes, stdin))
        if words and (body := self._functions.get(words[0])) is not None:
            return self._call(words, body, writes, stdin)
        self._learn(words)
        return _printed(words, stdin)

    def _call(self, words: Sequence[str], body: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        before, function = dict(self._variables), self._functions.pop(words[0])  # one that calls itself is followed once
        self._variables.update({str(place): word for place, word in enumerate(words) if place})
        printed = self.walk(body, writes, stdin)
        self._functions[words[0]] = function
        for place in map(str, range(1, len(words))):
            self._variables[place] = before.get(place, UNKNOWN)
        return printed

    def _learn(self, words: Sequence[str]) -> None:
        """Forget what a command may change: ``read x`` and the like."""
        if words[:1] in (["read"], ["mapfile"], ["readarray"], ["printf"], ["getopts"]):
            for name in words[1:]:
                if name in self._variables:
                    self._variables[name] = UNKNOWN

    def _redirected_statement(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        body = node.child_by_field_name("body")
        behind: list[Node] = []
        for child in node.named_children:
            if child.type == "file_redirect":
                writes += self._written(child)
            elif child.type == "herestring_redirect":
                stdin = self._here_string(child)
            elif child.type == "heredoc_redirect":
                stdin, more, after = self._here(child)
                writes, behind = writes + more, behind + after
        printed = "" if body is None else self.walk(body, writes, stdin)
        if body is None:
            self._run((), writes, stdin)
        for part in behind:  # what follows ``<<EOF`` in its line
            printed = self.walk(part, (), printed)
        return printed

    def _here_string(self, node: Node) -> str:
        return "".join(self._words.text(part) for part in node.named_children[-1:]) + "\n"

    def _here(self, node: Node) -> tuple[str, tuple[str, ...], list[Node]]:
        """The text of a here-document, where else its line leads, and what goes on behind it."""
        body, writes, behind = "", tuple[str, ...](), list[Node]()
        start = next((text_of(child) for child in node.named_children if child.type == "heredoc_start"), "")
        for child in node.named_children:
            if child.type == "heredoc_body":
                literal = any(sign in start for sign in "'\"\\")
                body = text_of(child) if literal else self._words.quoted(child)
            elif child.type == "file_redirect":
                writes += self._written(child)
            elif child.type not in ("heredoc_start", "heredoc_end", "file_descriptor"):
                behind.append(child)
        if any(child.type == "<<-" for child in node.children):
            body = "".join(line.lstrip("\t") for line in body.splitlines(keepends=True))
        return body, writes, behind

    def _written(self, node: Node) -> tuple[str, ...]:
        targets = [
            field for child in node.named_children if child.type != "file_descriptor" for field in self._words.fields(child)
        ]
        return tuple(targets) if any(child.type in _WRITES for child in node.children) else ()

    def _pipeline(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        for child in node.named_children:
            stdin = self.walk(child, writes, stdin)
        return stdin or ""

    def _for_statement(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        body, name = node.child_by_field_name("body"), node.child_by_field_name("variable")
        values = [field for child in node.children_by_field_name("value") for field in self._words.fields(child)]
        printed = []
        for value in values[:_LOOP_MAX] + [UNKNOWN] * (len(values) > _LOOP_MAX or not values):
            if body is not None and name is not None:
                self._variables[text_of(name)] = value
                printed.append(self.walk(body, writes, stdin))
        return "".join(printed)

    def _function_definition(self, node: Node, *_: object) -> str:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return ""
        if _multiplies(text_of(name), body):
            self.bombs.append(text_of(name))
        before = dict(self._variables)
        self.walk(body)  # also what nobody calls: it may be called later
        self._variables.clear()
        self._variables.update(before)
        self._functions[text_of(name)] = body
        return ""


def _multiplies(name: str, body: Node) -> bool:
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


def _printed(words: Sequence[str], stdin: str | None) -> str:
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
