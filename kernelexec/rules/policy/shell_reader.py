"""The simple commands of a bash script, by the grammar of tree-sitter.

A script is read, not interpreted: the commands of all branches, loops and functions count. A variable has each literal that
the script assigns to it, and an unknown value besides. A script of which the grammar is not sure is not understood.
"""

from __future__ import annotations

import codecs
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from kernelexec.rules.policy.magics import UNKNOWN

#: Characters of patterns that a shell replaces by names of files.
GLOB = frozenset("*?[")
#: A variable whose value is not yet filled in, with the end of an unquoted or a quoted one; and the border of two fields.
_VARIABLE, _UNQUOTED, _QUOTED, _FIELD_END = re.compile("\x00([^\x00-\x03]+)([\x01\x02])"), "\x01", "\x02", "\x03"
_AS_QUOTED = str.maketrans({_UNQUOTED: _QUOTED, _FIELD_END: " "})
#: Bounds of the commands of a script, fields of a word, values of a variable, combinations of values, and characters shown.
_COMMANDS_MAX, _FIELDS_MAX, _VALUES_MAX, _COMBINATIONS_MAX, _SHOWN_CHARS = 50_000, 256, 32, 200, 40
_BLANK, _BRACES = re.compile(r"[ \t\n]+"), re.compile(r"\{([^{}]*,[^{}]*)\}")
_RANGE = re.compile(r"\{(?:-?\d+|[A-Za-z])\.\.[^{}]*\}")
_ESCAPED, _ESCAPED_IN_QUOTES = re.compile(r"\\(\n|.)", re.DOTALL), re.compile(r'\\([$`"\\\n])')
#: Escapes of ``$'...'`` that Python reads alike.
_ANSI_C = re.compile(r"(?:[^\\]|\\(?:[\\'\"abfnrtv]|[0-7]{1,3}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))*", re.ASCII)
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
#: ``time`` before a command, and ``!`` before a block or declaration, which the grammar takes for programs.
_BEFORE_BLOCK = re.compile(
    r"(?P<before>(?:\A|[;&|(){\n]|\b(?:then|do|else|elif|if|while|until)\s)[ \t]*)"
    r"(?P<prefix>(?:time(?:[ \t]+-p)?[ \t]+(?!-)|![ \t]+(?=[({]|(?:if|for|while|until|case|select|function)\b|\[\[|!\s|time\s"
    r"|(?:declare|typeset|export|readonly|local)\b|\w+[ \t]*\(\)))+)"
)
#: Beginnings of substitutions in the bytes of a script, and escapes, which begin none; one in backquotes with others in it.
_SUBSTITUTION, _ESCAPED_BACKQUOTE = re.compile(rb"\\.|\$\(|`|[<>]\(", re.DOTALL), re.compile(rb"`[^`]*\\[`$\\]")
#: Parts of a script in which single quotes do not keep a substitution from running.
_UNPROTECTED = frozenset({"arithmetic_expansion", "subscript", "string"})
#: Parts of a script, and commands, that read their words as numbers or as names of variables: a subscript there is expanded.
_NUMERIC = frozenset({"arithmetic_expansion", "subscript", "test_command", "variable_assignment", "declaration_command"})
_NUMERIC_COMMANDS = frozenset({"let", "test", "read", "unset", "mapfile", "readarray", "wait", "printf", "declare", "typeset"})
_SUBSCRIPT = re.compile(rb"\w\[[^]]*(?:\$\(|`)")
#: Variables whose values a shell expands once more, and those that change the meaning of a command's name.
_EXPANDED, _NAMING = ("PS0", "PS1", "PS2", "PS4", "BASH_ENV", "PROMPT_COMMAND"), frozenset({"BASH_CMDS", "BASH_ALIASES"})


class UnparsableScript(Exception):
    """A script is not in the language of bash, or a part of it is not literal where only literal text can be judged."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: its words after expansion, the files that redirections write, and the text of its standard input.

    ``stdin`` is None where the script gives it none; ``appends`` are the files that are written to but not emptied.
    ``is_bomb`` marks a function, by its name, that starts itself again without end.
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
    """A command whose variables are not yet filled in."""

    stdin: str | None
    words: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    appends: list[str] = field(default_factory=list)


def read(text: str, *arguments: str) -> Script:
    """Return the commands of a script that is called with these arguments, the first of which is its name.

    Raises:
        UnparsableScript: It is not in the language of bash, or it is not clear which commands it holds.
    """
    source = _BEFORE_BLOCK.sub(lambda match: match["before"] + " " * len(match["prefix"]), text).encode("utf-8", "replace")
    root = _parser().parse(source).root_node
    nodes = list(_nodes_in_context(root))
    if root.has_error or not set(text).isdisjoint("\0\1\2\3"):
        error = next((text_of(node) for node, *_ in nodes if node.is_error or node.is_missing), text).partition("\n")[0]
        message = f"it is not understood as the language of bash, at {error[:_SHOWN_CHARS]!r}"
        raise UnparsableScript(message)
    _check_substitutions(source, nodes)
    plain = [node for node, *_ in nodes]
    has_background = any(node.type != "binary_expression" and "&" in _kinds(node.children) for node in plain)
    try:
        return Script(_Reader(source, arguments).read(plain), not _SUBSTITUTIONS.isdisjoint(_kinds(plain)), has_background)
    except RecursionError as exc:
        raise UnparsableScript("its parts stand too deep in each other") from exc


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def text_of(node: Node) -> str:
    """Return the source text of a node."""
    return (node.text or b"").decode("utf-8", "replace")


def _nodes_in_context(root: Node) -> Iterator[tuple[Node, bool, bool]]:
    """Yield each node, whether single quotes protect nothing in it, and whether its words are read as numbers."""
    nodes = [(root, False, False)]
    while nodes:
        node, unprotected, numeric = nodes.pop()
        yield node, unprotected, numeric
        kind, children = node.type, node.children
        if kind in _SUBSTITUTIONS or kind in _REDIRECTIONS:
            unprotected = numeric = False
        name, words = _called(node) if kind == "command" else ("", [])
        unprotected |= kind in _UNPROTECTED or bool(children and children[0].type == "((")
        numeric |= kind in _NUMERIC or (name in _NUMERIC_COMMANDS and (name != "printf" or "-v" in words))
        nodes += [(child, unprotected, numeric) for child in reversed(children)]


def _called(command: Node) -> tuple[str, list[str]]:
    name = command.child_by_field_name("name")
    return "" if name is None else text_of(name), [text_of(word) for word in command.children_by_field_name("argument")]


def _kinds(nodes: Iterable[Node]) -> set[str]:
    return {node.type for node in nodes}


def _check_substitutions(source: bytes, nodes: Iterable[tuple[Node, bool, bool]]) -> None:
    """Check that the grammar saw all substitutions of a script, since it misses some.

    Raises:
        UnparsableScript: One is left, or a text that looks like one is expanded where quotes do not protect it.
    """
    rest = bytearray(source)  # in which all that is understood is blanked out
    for node, unprotected, numeric in nodes:
        kind, children, ranges = node.type, node.children, list[tuple[int, int]]()
        if kind in _SUBSTITUTIONS or kind == "arithmetic_expansion":
            ranges = [children[0].byte_range, (node.end_byte - 1, node.end_byte)]
        elif kind in ("raw_string", "ansi_c_string", "comment") and not unprotected:
            ranges = [node.byte_range]
        elif kind == "heredoc_redirect" and _is_literal_document(node):
            ranges = [child.byte_range for child in children if child.type == "heredoc_body"]
        for begin, end in ranges:
            rest[begin:end] = b" " * (end - begin)
        if numeric and not children and _SUBSCRIPT.search(node.text or b""):
            raise UnparsableScript("it expands the subscript of a variable's name")
        if kind == "comment" and source[max(0, node.start_byte - 2) : node.start_byte] == b"\\\n":
            raise UnparsableScript("it is not clear where a comment begins")
        if kind == "command_substitution" and _ESCAPED_BACKQUOTE.match(node.text or b""):
            raise UnparsableScript("it is not clear where its backquotes end")
    if any(not match[0].startswith(b"\\") for match in _SUBSTITUTION.finditer(rest)):
        raise UnparsableScript("it is not clear where commands stand within its words")


def _is_literal_document(redirect: Node) -> bool:
    """Tell whether nothing is expanded in a here-document."""
    return any(child.type == "heredoc_start" and set(text_of(child)) & set("'\"\\") for child in redirect.children)


class _Reader:
    """The reader of one script: its commands, and the values that it assigns to variables."""

    def __init__(self, source: bytes, arguments: Sequence[str]) -> None:
        self._source = source
        self._drafts: list[_Draft] = []
        self._bombs: list[str] = []
        self._functions: set[str] = set()
        self._outputs: dict[int, str] = {}
        self._texts: dict[str, dict[str, None]] = defaultdict(dict, {"IFS": {" ": None}, "HOME": {"~": None}})
        self._defaults: dict[str, str] = {}
        self._values: dict[str, list[str]] = {}
        self._learn_arguments(arguments)

    def read(self, nodes: Sequence[Node]) -> tuple[Command, ...]:
        """Return the commands of a script, once for each combination of their variables' values."""
        self._walk(nodes[0], None)
        for node in nodes:
            self._learn_from(node)
        for draft in self._drafts:
            if draft.words[:1] and (draft.words[0] in self._functions or draft.words[:2] == ["set", "--"]):
                for words in (draft.words, *[command.words for command in self._fill_in(draft)]):
                    self._learn_arguments(words[words[0] == "set" :])
        for name, variable in self._defaults.items():
            self._learn(name, self._texts[variable])
        self._values.clear()
        if any("$(" in text or "`" in text for name in _EXPANDED for text in self._values_of(name)):
            raise UnparsableScript("it assigns commands that a shell expands later")
        commands = {Command((name,), is_bomb=True): None for name in self._bombs}
        for draft in self._drafts:
            commands |= dict.fromkeys(self._fill_in(draft))
            if len(commands) > _COMMANDS_MAX:
                message = f"it runs more than {_COMMANDS_MAX} commands"
                raise UnparsableScript(message)
        return tuple(commands)

    def _learn_from(self, node: Node) -> None:
        """Learn from a node the values of a variable, the name of a function, or the commands of a substitution."""
        target = node.child_by_field_name("variable" if node.type == "for_statement" else "name")
        name = "" if target is None else text_of(target)
        match node.type:
            case "variable_assignment":
                if name.partition("[")[0] in _NAMING:
                    raise UnparsableScript("it changes the meaning of commands' names")
                value = node.child_by_field_name("value")
                begins = list(self._texts[name]) if "+=" in _kinds(node.children) else []
                text = "" if value is None else self._text(value, quoted=True)
                self._learn(name, [begin + text for begin in begins or [""]])
            case "for_statement":
                self._learn(name, [word for value in node.children_by_field_name("value") for word in self._fields(value)])
            case "function_definition":
                self._functions.add(name)
                self._bombs += [name] if _is_fork_bomb(name, node) else []
            case kind if kind in _SUBSTITUTIONS:
                self._output_of(node)

    def _learn(self, name: str, texts: Iterable[str]) -> None:
        known = self._texts[name]
        known |= dict.fromkeys(itertools.islice(texts, max(0, _VALUES_MAX - len(known))))

    def _learn_arguments(self, words: Sequence[str]) -> None:
        """Learn the values of ``$0``, ``$1``, ``$@`` from the words of a call."""
        for position, word in enumerate(words):
            self._learn(str(position), [word])
        self._learn("@", [_FIELD_END.join(words[1:])] if words else [])

    def _walk(self, node: Node, stdin: str | None) -> str:
        """Record the commands of a part of the script, and return its output, in which what is not literal is unknown."""
        match node.type:
            case "command" | "declaration_command" | "unset_command":
                self._drafts.append(self._command(node, stdin))
                return _output(self._drafts[-1])
            case "redirected_statement":
                return self._redirected(node, stdin)
            case "function_definition":
                return self._redirected(node, UNKNOWN)
            case "pipeline":
                for child in node.named_children:
                    stdin = self._walk(child, stdin)
                return stdin or ""
            case kind:
                output = "".join([self._walk(child, stdin) for child in node.named_children])
                return output if kind in _SEQUENCES else output and UNKNOWN

    def _output_of(self, substitution: Node) -> str:
        """Record the commands of a substitution, and return the text that replaces it."""
        if substitution.id not in self._outputs:
            self._outputs[substitution.id] = self._walk(substitution, None).rstrip("\n")
        return self._outputs[substitution.id]

    def _command(self, node: Node, stdin: str | None) -> _Draft:
        draft, end = _Draft(stdin), -1
        for child in node.children:
            if child.type in _REDIRECTIONS:
                self._redirect(child, draft)
            elif child.type != "variable_assignment" or node.type != "command":
                if end >= 0 and not self._source[end : child.start_byte].replace(b"\\\n", b""):
                    message = f"it is not clear where a word ends: {text_of(node)[:_SHOWN_CHARS]}"
                    raise UnparsableScript(message)
                draft.words += self._fields(child)
                end = child.end_byte
        return draft

    def _redirected(self, node: Node, stdin: str | None) -> str:
        """Walk through a statement with redirections, which belong to its last command or to a whole block."""
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
        """Note a redirection of a command, and the words of the command that the grammar takes for parts of it."""
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
        """Return the fields of a word before its variables are filled in."""
        words = [self._text(node)]
        if not set(text_of(node)).isdisjoint("\\'\"$`"):
            return words
        while braces := next(filter(None, map(_BRACES.search, words)), None):
            parts = braces[1].split(",")
            words = list(dict.fromkeys(word.replace(braces[0], part, 1) for word in words for part in parts))
            if len(words) > _FIELDS_MAX:
                message = f"a word becomes more than {_FIELDS_MAX} fields"
                raise UnparsableScript(message)
        return [_RANGE.sub(UNKNOWN, word) for word in words]

    def _text(self, node: Node, *, quoted: bool = False) -> str:
        """Return the text of a word, with its variables; other parts that are not literal are unknown."""
        match node.type:
            case "raw_string":
                return text_of(node)[1:-1]
            case "ansi_c_string":
                return _decode_ansi_c(text_of(node)[2:-1])
            case "simple_expansion" | "expansion":
                return self._variable(node, quoted=quoted)
            case "command_substitution":
                output = self._output_of(node)
                return output.translate(_AS_QUOTED) if quoted else _BLANK.sub(_FIELD_END, output)
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

    def _variable(self, node: Node, *, quoted: bool) -> str:
        names = [text_of(child) for child in node.named_children if child.type.endswith("variable_name")]
        kinds = [child.type for child in node.children]
        if kinds[-3:-1] == ["@", "P"]:
            raise UnparsableScript("a variable's value is expanded once more")
        has_default = len(kinds) > 3 and kinds[2] in _DEFAULTS  # noqa: PLR2004 - ${ x }
        if len(names) != 1 or (len(kinds) > 3 and not has_default):  # noqa: PLR2004 - ${ x }
            return UNKNOWN
        name = "@" if names[0] == "*" else names[0]
        if has_default:
            variable, name = name, f":{node.id}"
            self._learn(name, ["".join(self._text(child, quoted=True) for child in node.named_children[1:])])
            self._defaults |= {} if kinds[2].endswith("+") else {name: variable}
        return UNKNOWN + name + (_QUOTED if quoted else _UNQUOTED)

    def _values_of(self, name: str) -> list[str]:
        """Return the values that the script gives to a variable, or the unknown one."""
        if name not in self._values:
            self._values[name] = [UNKNOWN]  # within its own value
            texts = [_fill(text, values) for text in self._texts[name] for values in self._combinations([text])]
            self._values[name] = list(dict.fromkeys(texts)) or [UNKNOWN]
        return self._values[name]

    def _combinations(self, texts: Iterable[str]) -> list[dict[str, str]]:
        """Return the combinations of values of the variables in some texts; of too many, all at once and each once."""
        names = dict.fromkeys(name for text in texts for name, _ in _VARIABLE.findall(text))
        values = [self._values_of(name) for name in names]
        combinations: Iterable[tuple[str, ...]] = itertools.product(*values)
        if math.prod(map(len, values)) > _COMBINATIONS_MAX:
            values = [[_FIELD_END.join(options), *options] for options in values]
            combinations = itertools.zip_longest(*values, fillvalue=UNKNOWN)
        return [dict(zip(names, chosen, strict=True)) for chosen in combinations]

    def _fill_in(self, draft: _Draft) -> Iterator[Command]:
        """Yield a command once for each combination of its variables' values, and once with unknown values."""
        parts, stdin = (draft.words, draft.writes, draft.appends), (draft.stdin or "").translate(_AS_QUOTED)
        known = self._combinations([*itertools.chain(*parts), stdin]) if any(parts) else []
        unknown = [{name: text if name.startswith(":") else UNKNOWN for name, text in values.items()} for values in known[:1]]
        for values in known + unknown:
            words, writes, appends = (tuple(_fill_fields(part, values)) for part in parts)
            yield Command(words, writes, None if draft.stdin is None else _fill(stdin, values), appends)


def _output(draft: _Draft) -> str:
    """Return the output of a command, which is unknown where its words do not show it."""
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


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of its variables; unquoted ones are split at blanks."""
    return _VARIABLE.sub(
        lambda match: values[match[1]] if match[2] == _QUOTED else _BLANK.sub(_FIELD_END, values[match[1]]), text
    )


def _fill_fields(words: Iterable[str], values: Mapping[str, str]) -> Iterator[str]:
    for word in words:
        text = _fill(word, values)
        yield from [text] if text == word and _FIELD_END not in text else filter(None, text.split(_FIELD_END))


def _decode_ansi_c(text: str) -> str:
    if _ANSI_C.fullmatch(text) is None or not text.isascii():
        return UNKNOWN if "\\" in text else text
    decoded = codecs.decode(text, "unicode_escape").split("\0")[0]
    return decoded if set(decoded).isdisjoint(_UNQUOTED + _QUOTED + _FIELD_END) else UNKNOWN


def _is_fork_bomb(name: str, function: Node) -> bool:
    """Tell whether a function calls itself in the background, or more than once at a time."""
    nodes = [node for node, *_ in _nodes_in_context(function)]
    calls = [node.start_byte for node in nodes if node.type == "command" and _called(node)[0] == name]
    concurrent = [node for node in nodes if node.type == "pipeline"] if len(calls) > 1 else []
    concurrent += [child for node in nodes for child, after in itertools.pairwise(node.children) if after.type == "&"]
    return any(part.start_byte <= call < part.end_byte for part in concurrent for call in calls)


def _document(redirect: Node) -> str:
    """Return the text of a here-document, which is unknown where something is expanded in it.

    Raises:
        UnparsableScript: It is not clear where the text begins.
    """
    parts = {child.type: child for child in redirect.children}
    start, body = parts.get("heredoc_start"), parts.get("heredoc_body")
    if start is None or body is None or body.start_point.row - start.end_point.row != 1:
        raise UnparsableScript("it is not clear where a here-document begins")
    text = text_of(body)
    if not _is_literal_document(redirect) and set(text) & set("$`\\"):
        return UNKNOWN
    return re.sub(r"(?m)^\t+", "", text) if "<<-" in parts else text
