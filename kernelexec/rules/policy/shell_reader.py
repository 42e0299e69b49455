"""The simple commands of a bash script, by the grammar of tree-sitter.

A script is read, not interpreted: the commands of all branches, loops and functions count, and only their literal text. A
variable has the last assigned literal, an output the literal printed by ``echo`` and a few others. All else is unknown.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from kernelexec.rules.policy.magics import UNKNOWN

#: Characters of patterns that a shell replaces by names of files.
GLOB = frozenset("*?[")
#: The border of two fields within the text of a word.
_FIELD_END = "\x03"
#: The longest value of a variable, and the characters of a script in a message. A value may be in a script many times.
_VALUE_CHARS, _SHOWN_CHARS = 256, 40
#: How much of a script is read again for the further values of its loops.
_REPEATED_BYTES = 100_000
_BLANK = re.compile(r"[ \t\n]+")
_ESCAPED, _ESCAPED_IN_QUOTES = re.compile(r"\\(\n|.)", re.DOTALL), re.compile(r'\\([$`"\\\n])')
_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution"})
_REDIRECTIONS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
_WRITES, _APPENDS = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"}), frozenset({">>", "&>>", "<>"})
#: Words of which the source is the text, but for quotes and the parts that have parts themselves.
_LITERAL = frozenset(
    {"word", "concatenation", "command_name", "string", "translated_string", "variable_assignment"}
) | frozenset({"brace_expression", "extglob_pattern", "regex", "number", "variable_name", "test_operator"})
_QUOTES, _DEFAULTS = frozenset({"raw_string", "ansi_c_string"}), frozenset({":-", "-", ":=", "=", ":+", "+"})
_STATEMENTS = frozenset({"command", "pipeline", "list", "negated_command", "redirected_statement"})
_SEQUENCES = frozenset({"program", "list", "subshell", "compound_statement", "negated_command", *_SUBSTITUTIONS})
_SILENT = frozenset({"cd", "export", "true", ":", "set", "mkdir", "touch", "rm", "sleep", "exec"})
#: ``time`` and ``!`` before a command, which the grammar takes for programs where a block follows.
_BEFORE_COMMAND = re.compile(
    r"(?P<before>(?:\A|[;&|(){\n]|\b(?:then|do|else|elif|if|while|until)\s)[ \t]*)"
    r"(?P<prefix>(?:(?:time(?:[ \t]+-p)?|!)[ \t]+(?!-))+)"
)
#: Beginnings of substitutions in the bytes of a script, and escapes, which begin none; one in backquotes with others in it.
_SUBSTITUTION, _ESCAPED_BACKQUOTE = re.compile(rb"\\.|\$\(|`|[<>]\(", re.DOTALL), re.compile(rb"`[^`]*\\[`$\\]")


class UnparsableScript(Exception):
    """A script outside of the language of bash, or without literal text where only such text can be judged."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: the words after expansion, the files written by redirections, and the text of the standard input.

    ``stdin`` is None without an input from the script; ``appends`` are the files written without being emptied.
    ``is_bomb`` marks a function, by its name, for starting itself again without end.
    """

    words: tuple[str, ...]
    writes: tuple[str, ...] = ()
    stdin: str | None = None
    appends: tuple[str, ...] = ()
    is_bomb: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """The commands of a script."""

    commands: tuple[Command, ...]
    has_substitution: bool = False
    has_background: bool = False


@dataclass(slots=True)
class _Draft:
    """An unfinished command: redirections of an enclosing statement may still add to its fields."""

    stdin: str | None = None
    words: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    appends: list[str] = field(default_factory=list)
    is_bomb: bool = False


def read(text: str) -> Script:
    """Return the commands of a script.

    Raises:
        UnparsableScript: The text is not in the language of bash, or its commands are not clear.
    """
    source = _BEFORE_COMMAND.sub(lambda match: match["before"] + " " * len(match["prefix"]), text).encode("utf-8", "replace")
    root = _parser().parse(source).root_node
    nodes = list(_nodes_of(root))
    if root.has_error or not set(text).isdisjoint(UNKNOWN + _FIELD_END):
        error = next((text_of(node) for node in nodes if node.is_error or node.is_missing), text).partition("\n")[0]
        message = f"it is not understood as the language of bash, at {error[:_SHOWN_CHARS]!r}"
        raise UnparsableScript(message)
    _check_substitutions(source, nodes)
    substitutions = [node for node in nodes if node.type in _SUBSTITUTIONS]
    has_background = any(node.type != "binary_expression" and "&" in _kinds(node.children) for node in nodes)
    try:
        return Script(_Reader(source).read(root, substitutions), bool(substitutions), has_background)
    except RecursionError as exc:
        raise UnparsableScript("its parts stand too deep in each other") from exc


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def _nodes_of(root: Node) -> Iterator[Node]:
    """Yield a node and all nodes within, in the order of the script."""
    nodes = [root]
    while nodes:
        yield (node := nodes.pop())
        nodes += reversed(node.children)


def _kinds(nodes: Iterable[Node]) -> set[str]:
    return {node.type for node in nodes}


def _check_substitutions(source: bytes, nodes: Iterable[Node]) -> None:
    """Check for substitutions missed by the grammar.

    Raises:
        UnparsableScript: A substitution was missed, or is nested within backquotes.
    """
    rest = bytearray(source)  # in which all that is understood is blanked out
    for node in nodes:
        kind, children, ranges = node.type, node.children, list[tuple[int, int]]()
        if kind in _SUBSTITUTIONS or kind == "arithmetic_expansion":
            ranges = [children[0].byte_range, (node.end_byte - 1, node.end_byte)]
        elif kind in ("raw_string", "ansi_c_string", "comment"):
            ranges = [node.byte_range]
        elif kind == "heredoc_redirect" and _is_literal_document(node):
            ranges = [child.byte_range for child in children if child.type == "heredoc_body"]
        for begin, end in ranges:
            rest[begin:end] = b" " * (end - begin)
        if kind == "command_substitution" and _ESCAPED_BACKQUOTE.match(node.text or b""):
            raise UnparsableScript("it is not clear where its backquotes end")
    if any(not match[0].startswith(b"\\") for match in _SUBSTITUTION.finditer(rest)):
        raise UnparsableScript("it is not clear where commands stand within its words")


def _is_literal_document(redirect: Node) -> bool:
    """Return whether nothing is expanded in a here-document."""
    return any(child.type == "heredoc_start" and set(text_of(child)) & set("'\"\\") for child in redirect.children)


class _Reader:
    """The reader of a script: collects commands, and the newest literals of variables, in the order of the text."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._drafts: list[_Draft] = []
        # By node: the commands of a substitution are recorded once, however often its text is asked for.
        self._outputs: dict[int, str] = {}
        self._values = {"HOME": "~"}
        self._repeated_bytes = 0

    def read(self, root: Node, substitutions: Iterable[Node]) -> tuple[Command, ...]:
        """Return the commands of a script, also of substitutions outside of a command's words."""
        self._walk(root, None)
        for node in substitutions:
            self._output_of(node)
        return tuple(
            Command(tuple(draft.words), tuple(draft.writes), draft.stdin, tuple(draft.appends), draft.is_bomb)
            for draft in self._drafts
            if draft.words or draft.writes or draft.appends
        )

    def _walk(self, node: Node, stdin: str | None) -> str:
        """Record the commands of a part of the script, and return its output, ``UNKNOWN`` where not literal."""
        match node.type:
            case "command" | "declaration_command" | "unset_command":
                self._drafts.append(self._command(node, stdin))
                return _output(self._drafts[-1])
            case "redirected_statement" | "function_definition":
                return self._redirected(node, stdin)
            case "variable_assignment":
                return self._assign(node)
            case "pipeline":
                for child in node.named_children:
                    stdin = self._walk(child, stdin)
                return stdin or ""
            case "for_statement":
                return self._repeat(node, stdin)
            case kind:
                output = "".join([self._walk(child, stdin) for child in node.named_children])
                return output if kind in _SEQUENCES else output and UNKNOWN

    def _repeat(self, loop: Node, stdin: str | None) -> str:
        """Walk through a loop once for each value, up to ``_REPEATED_BYTES`` of the script in all loops."""
        values = [word for value in loop.children_by_field_name("value") for word in self._fields(value)] or [UNKNOWN]
        output = ""
        if (body := loop.child_by_field_name("body")) is not None:
            for value in values:
                self._keep(_named(loop, "variable"), value)
                output = self._walk(body, stdin)
                self._repeated_bytes += body.end_byte - body.start_byte
                if self._repeated_bytes > _REPEATED_BYTES:
                    break
        return output and UNKNOWN

    def _assign(self, node: Node) -> str:
        """Note the value of a variable, and return the empty output of the assignment."""
        name, value = _named(node, "name"), node.child_by_field_name("value")
        before = self._values.get(name, "") if "+=" in _kinds(node.children) else ""
        self._keep(name, before + ("" if value is None else self._text(value, quoted=True)))
        return ""

    def _keep(self, name: str, value: str) -> None:
        self._values[name] = value if len(value) <= _VALUE_CHARS else UNKNOWN

    def _output_of(self, substitution: Node) -> str:
        """Record the commands of a substitution, and return the substituted text."""
        if substitution.id not in self._outputs:
            self._outputs[substitution.id] = self._walk(substitution, None).rstrip("\n")
        return self._outputs[substitution.id]

    def _command(self, node: Node, stdin: str | None) -> _Draft:
        draft = _Draft(stdin)
        for child in node.children:
            if child.type in _REDIRECTIONS:
                self._redirect(child, draft)
                continue
            if child.type == "variable_assignment":
                self._assign(child)
            if child.type != "variable_assignment" or node.type != "command":
                draft.words += self._fields(child)
        return draft

    def _redirected(self, node: Node, stdin: str | None) -> str:
        """Walk through a statement with redirections, for its last command or for a whole block."""
        if node.type == "function_definition":
            stdin = UNKNOWN
            if _is_fork_bomb(name := _named(node, "name"), node):
                self._drafts.append(_Draft(words=[name], is_bomb=True))
        body, draft, commands = node.child_by_field_name("body"), _Draft(stdin), len(self._drafts)
        redirections = [child for child in node.named_children if child.type in _REDIRECTIONS]
        for redirection in redirections:
            self._redirect(redirection, draft)
        output = "" if body is None else self._walk(body, draft.stdin)
        if body is not None and body.type in _STATEMENTS and len(self._drafts) > commands:
            last = self._drafts[-1]
            last.words += draft.words
            last.writes += draft.writes
            last.appends += draft.appends
            last.stdin = last.stdin if draft.stdin == stdin else draft.stdin
            output = f"{output}\n{_output(last)}" if body.type == "list" else _output(last)
        else:
            self._drafts.append(draft)
        for document in redirections:
            for following in document.named_children:
                if following.type in _STATEMENTS:
                    output = self._walk(following, output)
        return output

    def _redirect(self, node: Node, draft: _Draft) -> None:
        """Note a redirection of a command, and words of the command that the grammar takes for parts of the redirection."""
        parts, operators = [child for child in node.named_children if child.type != "file_descriptor"], _kinds(node.children)
        others = parts[1:]
        match node.type:
            case "file_redirect":
                files = [file for part in parts[:1] for file in self._fields(part)]
                draft.writes += files if operators & _WRITES else []
                draft.appends += files if operators & _APPENDS else []
            case "herestring_redirect":
                draft.stdin = self._text(parts[0], quoted=True) + "\n"
            case "heredoc_redirect":
                draft.stdin, others = _document(node), node.children_by_field_name("argument")
                for part in parts:
                    if part.type in _REDIRECTIONS:
                        self._redirect(part, draft)
        draft.words += [word for part in others for word in self._fields(part)]

    def _fields(self, node: Node) -> list[str]:
        """Return the fields of a word: none or several for an unquoted variable or output."""
        text = self._text(node)
        return list(filter(None, text.split(_FIELD_END))) if _FIELD_END in text else [text]

    def _text(self, node: Node, *, quoted: bool = False) -> str:
        """Return the text of a word, with ``UNKNOWN`` for parts that are not literal."""
        match node.type:
            case "raw_string":
                return text_of(node)[1:-1]
            case "ansi_c_string":
                text = text_of(node)[2:-1]
                return UNKNOWN if "\\" in text else text
            case "simple_expansion" | "expansion":
                return _expand(self._variable(node), quoted=quoted)
            case "command_substitution":
                return _expand(self._output_of(node), quoted=quoted)
            case kind if node.children and kind not in _LITERAL:
                return f"/dev/fd/{UNKNOWN}" if kind == "process_substitution" else UNKNOWN
        is_string = node.type == "string"
        escaped, texts, position = _ESCAPED_IN_QUOTES if is_string else _ESCAPED, list[str](), node.start_byte + is_string
        for child in [child for child in node.children if child.children or child.type in _QUOTES] + [None]:
            end = node.end_byte - is_string if child is None else child.start_byte
            source = self._source[position:end].decode("utf-8", "replace")
            if child is not None and child.type == "string":
                source = source.removesuffix("$")  # $"..." is translated
            texts.append(escaped.sub(lambda match: match[1].strip("\n"), source))
            if child is not None:
                texts.append(self._text(child, quoted=quoted or is_string))
                position = child.end_byte
        return "".join(texts)

    def _variable(self, node: Node) -> str:
        names = [text_of(child) for child in node.named_children if child.type.endswith("variable_name")]
        kinds = [child.type for child in node.children]
        has_default = len(kinds) > 3 and kinds[2] in _DEFAULTS  # noqa: PLR2004 - ${ x }
        if len(names) != 1 or (len(kinds) > 3 and not has_default):  # noqa: PLR2004 - ${ x }
            return UNKNOWN
        value = self._values.get(names[0])
        if has_default and (not value or kinds[2].endswith("+")):
            return "".join(self._text(child, quoted=True) for child in node.named_children[1:])
        return UNKNOWN if value is None else value


def _named(node: Node, part: str) -> str:
    """Return the text of a named part of a node; empty if missing."""
    child = node.child_by_field_name(part)
    return "" if child is None else text_of(child)


def _expand(text: str, *, quoted: bool) -> str:
    """Return a text within a word: a single field in quotes, otherwise divided by blanks."""
    return text if quoted else _BLANK.sub(_FIELD_END, text) or _FIELD_END


def _output(draft: _Draft) -> str:
    """Return the output of a command, ``UNKNOWN`` unless shown by its words."""
    match draft.words:
        case ["echo", *rest]:
            options = rest[:1] if rest and re.fullmatch("-[neE]+", rest[0]) else []
            text = " ".join(rest[len(options) :]) + "\n"
            return UNKNOWN if options and "\\" in text else text
        case ["printf", "%s" | "%s\\n" | "%s\n", text]:
            return text
        case ["printf", text] if "%" not in text and "\\" not in text:
            return text
        case ["which", name] | ["command", "-v", name] | ["type", "-p" | "-P", name]:
            return f"{name}\n"
        case ["cat"] | ["cat", "-"] | ["tee", *_] if draft.stdin is not None:
            return draft.stdin
    return UNKNOWN if draft.words and draft.words[0] not in _SILENT else ""


def _is_fork_bomb(name: str, function: Node) -> bool:
    """Return whether a function calls itself in the background, or more than once at a time."""
    nodes = list(_nodes_of(function))
    calls = [node.start_byte for node in nodes if node.type == "command" and _named(node, "name") == name]
    concurrent = [node for node in nodes if node.type == "pipeline"] if len(calls) > 1 else []
    concurrent += [child for node in nodes for child, after in itertools.pairwise(node.children) if after.type == "&"]
    return any(part.start_byte <= call < part.end_byte for part in concurrent for call in calls)


def _document(redirect: Node) -> str:
    """Return the text of a here-document, ``UNKNOWN`` if something is expanded within.

    Raises:
        UnparsableScript: The beginning of the text is not clear.
    """
    parts = {child.type: child for child in redirect.children}
    start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
    if start is None or body is None or body.start_point.row - start.end_point.row != 1:
        raise UnparsableScript("it is not clear where a here-document begins")
    text = text_of(body)
    if not _is_literal_document(redirect) and set(text) & set("$`\\"):
        return UNKNOWN
    return re.sub(r"(?m)^\t+", "", text) if "<<-" in parts else text
