"""The simple commands of a bash script, with their words, the files that they write and the text that they read.

Nothing is run and no control flow is followed: the commands of all branches, loops and functions count. Text that is not
literal stays unknown, and a script of which the grammar is not sure is not read at all.
"""

from __future__ import annotations

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.expansion import ALTERNATIVES_MAX, UNKNOWN, WordExpansion, text_of
from kernelexec.policy.shell.static_output import is_fork_bomb, known_stdout

_COMMANDS_MAX, _DEPTH_MAX, _VALUES_MAX, _SHOWN_CHARS = 50_000, 60, 32, 40
_WRITES = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
_APPENDS = frozenset({">>", "&>>", "<>"})
_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution"})
_REDIRECTIONS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
#: ``time`` before a command, and ``!`` before a block or declaration, which the grammar takes for programs.
_BEFORE_BLOCK = re.compile(
    r"(?P<before>(?:\A|[;&|(){\n]|\b(?:then|do|else|elif|if|while|until)\s)[ \t]*)"
    r"(?P<prefix>(?:time(?:[ \t]+-p)?[ \t]+(?!-)|![ \t]+(?=[({]|(?:if|for|while|until|case|select|function)\b|\[\[|!\s|time\s"
    r"|(?:declare|typeset|export|readonly|local)\b|\w+[ \t]*\(\)))+)"
)
#: Beginnings of substitutions as they stand in the bytes of a script, and escapes, which begin none.
_SUBSTITUTION = re.compile(rb"\\.|\$\(|`|[<>]\(", re.DOTALL)
#: A substitution in backquotes with others, or with quoted text, in it.
_ESCAPED_BACKQUOTE = re.compile(rb"`[^`]*\\[`$\\]")
#: Parts of a script in which single quotes do not keep a substitution from running.
_UNPROTECTED = frozenset({"arithmetic_expansion", "subscript", "string"})
#: Parts of a script, and commands, that read their words as numbers or as names of variables: a subscript there is expanded.
_NUMERIC = frozenset({"arithmetic_expansion", "subscript", "test_command", "variable_assignment", "declaration_command"})
_NUMERIC_COMMANDS = frozenset({"let", "test", "read", "unset", "mapfile", "readarray", "wait", "printf", "declare", "typeset"})
_SUBSCRIPT = re.compile(rb"\w\[[^]]*(?:\$\(|`)")
#: Variables whose values a shell expands once more, and those that change the meaning of a command's name.
_EXPANDED = frozenset({"PS0", "PS1", "PS2", "PS4", "BASH_ENV", "PROMPT_COMMAND"})
_NAMING = frozenset({"BASH_CMDS", "BASH_ALIASES"})


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: its words after expansion, the files that redirections write, and the text of its standard input.

    ``stdin`` is None where the script gives it none; ``appends`` are the files that are written to but not emptied.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    stdin: str | None = None
    appends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The commands of a script; ``bombs`` are names of functions that start themselves again without end."""

    commands: tuple[Command, ...]
    bombs: tuple[str, ...] = ()
    has_substitution: bool = False
    has_background: bool = False


@dataclass(frozen=True, slots=True)
class _Streams:
    """The redirections that hold for a part of a script."""

    writes: tuple[str, ...] = ()
    stdin: str | None = None
    appends: tuple[str, ...] = ()


def read(text: str, *arguments: str) -> Script:
    """Return the commands of a script that is called with these arguments, the first of which is its name.

    Raises:
        UnparsableScript: It is not in the language of bash, or it is not clear which commands it holds.
    """
    source = _BEFORE_BLOCK.sub(_blanks, text).encode("utf-8", "replace")
    root = _parser().parse(source).root_node
    if root.has_error:
        error = text_of(_first_error(root)).partition("\n")[0]
        message = f"it is not understood as the language of bash, at {error[:_SHOWN_CHARS]!r}"
        raise UnparsableScript(message)
    substitutions = _checked_substitutions(source, root)
    reader = _Reader(arguments)
    reader.read(root, substitutions)  # learns the values of variables
    commands = reader.read(root, substitutions)
    return Script(tuple(commands), tuple(reader.bombs), bool(substitutions), _has_background(root))


def _blanks(match: re.Match[str]) -> str:
    return match["before"] + " " * len(match["prefix"])


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _first_error(node: Node) -> Node:
    if node.is_error or node.is_missing:
        return node
    return next((_first_error(child) for child in node.children if child.has_error or child.is_missing), node)


def _checked_substitutions(source: bytes, root: Node) -> list[Node]:
    """Return the substitutions of a script, once they are those that stand in the source outside of quotes.

    Raises:
        UnparsableScript: The grammar missed one, or a text that looks like one is expanded where quotes do not protect it.
    """
    substitutions, seen_at, quoted = list[Node](), set[int](), list[tuple[int, int]]()
    for node, unprotected, numeric in _in_context(root):
        kind, children = node.type, node.children
        if not unprotected and (kind in ("raw_string", "ansi_c_string", "comment") or _is_literal_document(node)):
            quoted.append(node.byte_range)
        if kind in _SUBSTITUTIONS or kind == "arithmetic_expansion":
            seen_at |= {children[0].end_byte - len(text_of(children[0]).strip()), node.end_byte - 1}
            substitutions += [] if kind == "arithmetic_expansion" else [node]
        if numeric and not children and _SUBSCRIPT.search(node.text or b""):
            raise UnparsableScript("it expands the subscript of a variable's name")
        if kind == "comment" and source[max(0, node.start_byte - 2) : node.start_byte] == b"\\\n":
            raise UnparsableScript("it is not clear where a comment begins")
        if kind == "command_substitution" and _ESCAPED_BACKQUOTE.match(node.text or b""):
            raise UnparsableScript("it is not clear where its backquotes end")
    quoted.sort()
    for match in _SUBSTITUTION.finditer(source):
        if match[0][:1] != b"\\" and match.start() not in seen_at:
            before = bisect_right(quoted, (match.start(), len(source))) - 1
            if before < 0 or match.start() >= quoted[before][1]:
                raise UnparsableScript("it is not clear where commands stand within its words")
    return substitutions


def _in_context(root: Node) -> Iterator[tuple[Node, bool, bool]]:
    """Yield each node, whether single quotes protect nothing in it, and whether its words are read as numbers."""
    nodes = [(root, False, False)]
    while nodes:
        node, unprotected, numeric = nodes.pop()
        yield node, unprotected, numeric
        kind, children = node.type, node.children
        if kind in _SUBSTITUTIONS or kind in _REDIRECTIONS:
            unprotected = numeric = False
        unprotected = unprotected or kind in _UNPROTECTED or bool(children and children[0].type == "((")
        numeric = numeric or kind in _NUMERIC or (kind == "command" and _is_numeric(node))
        nodes += [(child, unprotected, numeric) for child in children]


def _is_literal_document(node: Node) -> bool:
    """Tell whether a node is the body of a here-document in which nothing is expanded."""
    if node.type != "heredoc_body" or node.parent is None:
        return False
    return any(child.type == "heredoc_start" and set(text_of(child)) & set("'\"\\") for child in node.parent.children)


def _is_numeric(command: Node) -> bool:
    name = command.child_by_field_name("name")
    words = [text_of(child) for child in command.children_by_field_name("argument")]
    return name is not None and text_of(name) in _NUMERIC_COMMANDS and (text_of(name) != "printf" or "-v" in words)


def _has_background(root: Node) -> bool:
    """Tell whether the shell goes on beside a command of the script."""
    nodes = (node for node, *_ in _in_context(root))
    return any(node.type == "&" and node.parent is not None and node.parent.type != "binary_expression" for node in nodes)


class _Reader:
    """Reads the commands of one script, and the values that it assigns to variables."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.bombs: dict[str, None] = {}
        self._variables: dict[str, dict[str, None]] = {"IFS": {" \t\n": None}, "HOME": {"~": None}}
        self._functions: set[str] = set()
        self._commands: dict[Command, None] = {}
        self._outputs: dict[int, str] = {}
        self._behind: dict[int, list[Node]] = {}
        self._words = WordExpansion(self._variables, self._output_of)
        self._depth = 0
        self._learn_arguments(arguments)

    def read(self, root: Node, substitutions: Iterable[Node]) -> list[Command]:
        """Return the commands of a script, also those within its words."""
        self._commands.clear()
        self._outputs.clear()
        self._walk(root, _Streams())
        for node in substitutions:
            self._output_of(node)
        return list(self._commands)

    def _output_of(self, node: Node) -> str:
        """Record the commands of a substitution, and return the text that stands in its place."""
        if node.id not in self._outputs:
            self._outputs[node.id] = UNKNOWN  # within itself
            output = "".join([self._walk(child, _Streams()) for child in node.named_children])
            is_file = node.type == "process_substitution"
            self._outputs[node.id] = f"/dev/fd/{UNKNOWN}" if is_file else output.rstrip("\n")
        return self._outputs[node.id]

    def _walk(self, node: Node, streams: _Streams) -> str:
        """Record the commands of a part of the script, and return its output, in which what is not literal is unknown."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise UnparsableScript("its parts stand too deep in each other")
        output = self._output(node, streams)
        self._depth -= 1
        return output

    def _output(self, node: Node, streams: _Streams) -> str:
        output = ""
        match node.type:
            case "command":
                output = self._command(node, streams)
            case "declaration_command" | "unset_command":
                output = self._record([[[text_of(node.children[0])]], *self._declarations(node)], streams)
            case "redirected_statement":
                output = self._redirected_statement(node, streams)
            case "pipeline":
                output = self._pipeline(node, streams)
            case "program" | "list" | "subshell" | "compound_statement" | "negated_command":
                output = self._several(node.named_children, streams)
            case "variable_assignment":
                self._assign(node)
            case "function_definition":
                self._function(node)
            case kind:
                if kind == "for_statement":
                    self._learn_loop(node)
                output = self._several(node.named_children, streams) and UNKNOWN
        return output

    def _several(self, nodes: Iterable[Node], streams: _Streams) -> str:
        return "".join([self._walk(node, streams) for node in nodes])

    def _pipeline(self, node: Node, streams: _Streams) -> str:
        for child in node.named_children:
            streams = replace(streams, stdin=self._walk(child, streams))
        return streams.stdin or ""

    def _command(self, node: Node, streams: _Streams) -> str:
        words, end = list[list[list[str]]](), -1
        for child in node.children:
            if child.type == "variable_assignment":
                self._assign(child)
            elif child.type in _REDIRECTIONS:
                streams, more = self._redirect([child], streams)
                words += more
            elif self._is_adjacent(node, end, child.start_byte):  # the grammar took one word for two
                message = f"it is not clear where a word ends: {text_of(node)[:_SHOWN_CHARS]}"
                raise UnparsableScript(message)
            else:
                words.append(self._words.alternatives(child))
                end = child.end_byte
        streams, more = self._redirect(self._behind.get(node.id, ()), streams)
        return self._record(words + more, streams)

    @staticmethod
    def _is_adjacent(node: Node, end: int, begin: int) -> bool:
        """Tell whether no blank stands between the end of a word and the beginning of the next."""
        between = (node.text or b"")[end - node.start_byte : begin - node.start_byte]
        return end >= 0 and between.replace(b"\\\n", b"") == b""

    def _declarations(self, node: Node) -> Iterator[list[list[str]]]:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child)
                yield [[text_of(child)]]
            else:
                yield self._words.alternatives(child)

    def _record(self, words: Sequence[Sequence[Sequence[str]]], streams: _Streams) -> str:
        """Record a command, once for each combination of its variables' values; of too many combinations all values at once."""
        combined = math.prod(map(len, words)) <= ALTERNATIVES_MAX
        chosen = itertools.product(*words) if combined else [[fields for word in words for fields in word]]
        commands = [[field for fields in choice for field in fields] for choice in chosen]
        for command in filter(None, commands) if not streams.writes else commands:
            self._commands[Command(tuple(command), streams.writes, streams.stdin, streams.appends)] = None
            if command[:1] and command[0] in self._functions:
                self._learn_arguments(command)
            elif command[:2] == ["set", "--"]:
                self._learn_arguments(command[1:])
        if len(self._commands) > _COMMANDS_MAX:
            message = f"it runs more than {_COMMANDS_MAX} commands"
            raise UnparsableScript(message)
        return known_stdout(commands[0], streams.stdin) if len(commands) == 1 else UNKNOWN

    def _redirected_statement(self, node: Node, streams: _Streams) -> str:
        body = node.child_by_field_name("body")
        redirections = [child for child in node.named_children if child != body]
        last = body
        while last is not None and last.type in ("pipeline", "list", "negated_command"):
            last = last.named_children[-1]
        if body is not None and last is not None and last.type == "command":
            self._behind[last.id] = redirections
            output = self._walk(body, streams)
        else:
            streams, words = self._redirect(redirections, streams)
            if words:
                raise UnparsableScript("it is not clear whose words stand behind a redirection")
            output = self._record([], streams) if body is None else self._walk(body, streams)
        for rest in (
            child for document in redirections if document.type == "heredoc_redirect" for child in document.named_children
        ):
            if rest.type == "pipeline":
                output = self._pipeline(rest, replace(streams, stdin=output))
            elif rest.type in ("command", "list", "redirected_statement"):
                output = self._walk(rest, streams)
        return output

    def _redirect(self, nodes: Iterable[Node], streams: _Streams) -> tuple[_Streams, list[list[list[str]]]]:
        """Return the streams with these redirections, and the words of the command that the grammar takes for parts of them."""
        words = list[list[list[str]]]()
        for node in nodes:
            parts = [child for child in node.named_children if child.type != "file_descriptor"]
            match node.type:
                case "file_redirect":
                    operators = {child.type for child in node.children}
                    files = tuple(file for part in parts[:1] for fields in self._words.alternatives(part) for file in fields)
                    if operators & _WRITES:
                        streams = replace(streams, writes=streams.writes + files)
                    if operators & _APPENDS:
                        streams = replace(streams, appends=streams.appends + files)
                    words += map(self._words.alternatives, parts[1:])
                case "herestring_redirect":
                    texts = self._words.texts(parts[0])
                    streams = replace(streams, stdin=f"{texts[0]}\n" if len(texts) == 1 else UNKNOWN)
                    words += map(self._words.alternatives, parts[1:])
                case "heredoc_redirect":
                    streams = replace(streams, stdin=_document(node))
                    streams, more = self._redirect([part for part in parts if part.type in _REDIRECTIONS], streams)
                    words += more
                    words += [self._words.alternatives(part) for part in node.children_by_field_name("argument")]
        return streams, words

    def _assign(self, node: Node) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name = "" if target is None else text_of(target)
        if name.partition("[")[0] in _NAMING:
            raise UnparsableScript("it changes the meaning of commands' names")
        texts = [""] if value is None else [UNKNOWN] if value.type == "array" else self._words.texts(value)
        if name in _EXPANDED and any("$(" in text or "`" in text for text in texts):
            raise UnparsableScript("it assigns commands that a shell expands later")
        if any(child.type == "+=" for child in node.children):
            texts = [known + text for known in self._variables.get(name, {"": None}) for text in texts]
        self._learn(name, texts)

    def _learn(self, name: str, texts: Iterable[str]) -> None:
        values = self._variables.setdefault(name, {})
        values.update(
            dict.fromkeys(itertools.islice((text for text in texts if UNKNOWN not in text), _VALUES_MAX - len(values)))
        )

    def _learn_arguments(self, words: Sequence[str]) -> None:
        """Learn the values of ``$0``, ``$1``, ``$@`` from the words of a call."""
        for position, word in enumerate(words):
            for name in (str(position), "@", "*") if position else ("0",):
                self._learn(name, [word])

    def _learn_loop(self, node: Node) -> None:
        variable = node.child_by_field_name("variable")
        for value in node.children_by_field_name("value"):
            for fields in self._words.alternatives(value):
                self._learn("" if variable is None else text_of(variable), fields)

    def _function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            return
        self._functions.add(text_of(name))
        if is_fork_bomb(text_of(name), body):
            self.bombs[text_of(name)] = None
        streams, _ = self._redirect(node.children_by_field_name("redirect"), _Streams(stdin=UNKNOWN))
        self._walk(body, streams)


def _document(node: Node) -> str:
    """Return the text of a here-document, which is unknown where something is expanded in it.

    Raises:
        UnparsableScript: It is not clear where the text begins.
    """
    parts = {child.type: child for child in node.children}
    start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
    line = b"" if start is None or body is None else (node.text or b"")[start.end_byte - node.start_byte :]
    if start is None or body is None or line[: body.start_byte - start.end_byte].count(b"\n") != 1:
        raise UnparsableScript("it is not clear where a here-document begins")
    text = text_of(body)
    if not _is_literal_document(body) and set(text) & set("$`\\"):
        return UNKNOWN
    return re.sub(r"(?m)^\t+", "", text) if "<<-" in parts else text
