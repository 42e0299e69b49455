"""What a script for a shell runs: its simple commands, however deep they stand, with the words that each would get.

The script is followed as far as its text says what it does: constants that it assigns, loops over words, functions that it
calls, text that it pipes on. What only the running shell can know stays marked as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from kernelexec.policy.shell.builtins import EXPANDED, NAMING, NUMBERING, RESERVED, SUBSCRIPT
from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.expansion import BLANKS, UNKNOWN, Words, text_of
from kernelexec.policy.shell.normalize import plain
from kernelexec.policy.shell.normalized import HERE, LITERAL
from kernelexec.policy.shell.static_output import multiplies, printed_by

_COMMANDS_MAX, _DEPTH_MAX, _LOOP_MAX, _SHOWN_CHARS = 2000, 60, 32, 40
_WRITES = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
#: What a shell knows before a script says anything.
_BEFORE = {"IFS": BLANKS, "HOME": "~"}


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
        UnparsableScript: it is not the language of bash, or too much of it.
    """
    reader = _Reader({str(place): argument for place, argument in enumerate(arguments)})
    reader.follow(text)
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
        self._words = Words(self._variables, self._output_of, self._again)
        self._depth = 0
        self._followed: set[tuple[int, int]] = set()
        self._literals: list[str] = []
        self._behind: dict[int, list[Node]] = {}

    def follow(self, text: str) -> str:
        """Follow a whole text; what it prints, as far as that is known.

        Raises:
            UnparsableScript: it is not the language of bash, or the grammar misses a command that stands in a word.
        """
        script = plain(text, self._literals)
        root = _parser().parse(script.text.encode("utf-8", "replace")).root_node
        if root.has_error:
            error = text_of(_first_error(root)).partition("\n")[0]
            raise UnparsableScript(f"it is not understood as the language of bash, at {error[:_SHOWN_CHARS]!r}")
        before, self._followed = self._followed, set()
        printed = self.walk(root)
        if not script.commands <= self._followed:
            raise UnparsableScript("it is not clear where commands stand within its words")
        self._followed = before
        return printed

    def _again(self, text: str) -> None:
        """Follow the commands within a text that the shell expands once more."""
        if UNKNOWN in text:
            raise UnparsableScript("a text that is to be expanded once more is made while it runs")
        if "$" in text or "`" in text:
            self.follow(f": <<__END__\n{text}\n__END__\n")

    def walk(self, node: Node, writes: tuple[str, ...] = (), stdin: str | None = None) -> str:
        """Follow a part of the script; what it prints, as far as that is known."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise UnparsableScript("its parts stand too deep in each other")
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

    _variable_name = _number = _comment

    def _string(self, node: Node, *_: object) -> str:
        self._numbers(self._words.fields(node))
        return ""

    _word = _raw_string = _ansi_c_string = _string
    _concatenation = _simple_expansion = _expansion = _translated_string = _arithmetic_expansion = _string
    _process_substitution = _command_substitution = _string

    def _output_of(self, node: Node) -> str:
        """What the commands within ``$( )`` or ``<( )`` print, without the line ends after it."""
        self._followed.add((node.children[0].end_byte - 2, node.end_byte))  # the blanks before it may be taken for its own
        printed = self._others(node, (), None)
        return f"/dev/fd/{UNKNOWN}" if node.type == "process_substitution" else printed.rstrip("\n")

    def _variable_assignment(self, node: Node, *_: object) -> str:
        named, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if named is None:
            return ""
        for index in named.named_children[1:]:  # of a[1]=
            self._words.fields(index)
        text = "" if value is None else self._words.text(value) if value.type != "array" else self._array(value)
        name, appends = text_of(named), any(child.type == "+=" for child in node.children)
        self._variables[name] = self._variables.get(name, "") + text if appends else text
        if name.partition("[")[0] in NAMING:
            raise UnparsableScript("it changes what names of commands mean")
        if name in EXPANDED and UNKNOWN not in text:
            self._again(text)
        self._numbers([name, text])
        return ""

    def _array(self, node: Node) -> str:
        for child in node.named_children:
            self._words.fields(child)
        return UNKNOWN

    def _command(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> str:
        words, end, separators = list[str](), -1, self._variables.get("IFS", BLANKS)
        for child in node.children:
            match child.type:
                case "variable_assignment":
                    self._variable_assignment(child)
                case "file_redirect":
                    writes, stdin = self._redirected(child, writes, stdin)
                    words += self._behind_target(child)
                case _:
                    if child.start_byte == end:  # no blank between two words: the grammar took one for two
                        raise UnparsableScript(f"it is not clear where a word ends: {text_of(node)[:40]}")
                    if child.type == "command_name" and text_of(child) in RESERVED:
                        raise UnparsableScript(f"it is not clear what {text_of(child)!r} means")
                    words += self._words.fields(child)
                    end = child.end_byte
        for redirect in self._behind.get(node.id, ()):
            writes, stdin = self._redirected(redirect, writes, stdin)
            words += self._behind_target(redirect)
        if words:
            self._variables["IFS"] = separators  # IFS= read x
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
            raise UnparsableScript(f"it runs more than {_COMMANDS_MAX} commands")
        self.commands.append(Command(tuple(words), writes, stdin))
        if words and (body := self._functions.get(words[0])) is not None:
            return self._call(words, body, writes, stdin)
        self._learn(words)
        if words and words[0] in NUMBERING:
            self._numbers(words)
        return printed_by(words, stdin)

    def _numbers(self, words: Sequence[str]) -> None:
        """Follow what stands in the subscripts of words that may be read as numbers."""
        for word in words:
            if SUBSCRIPT.search(word):
                self._again(word)

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
        body, redirects = (
            node.child_by_field_name("body"),
            [part for part in node.named_children if part.type == "file_redirect"],
        )
        last = body
        while last is not None and last.type in ("pipeline", "list", "negated_command"):
            last = last.named_children[-1]
        if body is not None and last is not None and last.type == "command":
            self._behind[last.id] = redirects
            printed = self.walk(body, writes, stdin)
            del self._behind[last.id]
            return printed
        for redirect in redirects:
            writes, stdin = self._redirected(redirect, writes, stdin)
            if self._behind_target(redirect):
                raise UnparsableScript("it is not clear whose words stand behind a redirection")
        return self._run((), writes, stdin) if body is None else self.walk(body, writes, stdin)

    def _redirected(self, node: Node, writes: tuple[str, ...], stdin: str | None) -> tuple[tuple[str, ...], str | None]:
        """The files that are written to, and what is read, with this redirection too."""
        targets = [child for child in node.named_children if child.type != "file_descriptor"][:1]
        if any(child.type in _WRITES for child in node.children):
            return (*writes, *(field for target in targets for field in self._words.fields(target))), stdin
        text = "".join(map(self._words.text, targets))
        if text.startswith(LITERAL) and text[1:].isdecimal() and int(text[1:]) < len(self._literals):
            return writes, f"{self._literals[int(text[1:])]}\n"
        return writes, f"{text[1:]}\n" if text.startswith(HERE) else stdin

    def _behind_target(self, node: Node) -> list[str]:
        """The command's words behind a redirection, which the grammar takes for more targets."""
        targets = [child for child in node.named_children if child.type != "file_descriptor"]
        return [field for target in targets[1:] for field in self._words.fields(target)]

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
        if multiplies(text_of(name), body):
            self.bombs.append(text_of(name))
        before, writes, stdin = dict(self._variables), tuple[str, ...](), None
        for redirect in node.children_by_field_name("redirect"):
            writes, stdin = self._redirected(redirect, writes, stdin)
        self.walk(body, writes, stdin)  # also what nobody calls: it may be called later
        self._variables.clear()
        self._variables.update(before)
        self._functions[text_of(name)] = body
        return ""
