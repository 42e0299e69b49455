"""YAML as everybody reads it: what its versions 1.1 and 1.2 take for different things is refused unless it is in quotes."""

from __future__ import annotations

import re
from typing import Any

import yaml

from kernelexec.config.messages import shorten
from kernelexec.errors import InvalidConfig

#: How many values all aliases of one text may stand for together: a few of them could stand for any amount.
ALIASED_MAX = 10_000
_DIGITS_MAX = 100
_PROBLEM_CHARS = 120
_INT, _BOOL = "tag:yaml.org,2002:int", "tag:yaml.org,2002:bool"
_MERGE, _DOUBTFUL = "tag:yaml.org,2002:merge", "tag:kernelexec,2026:doubtful"
#: What a plain value is, the first that matches: YAML 1.2's core schema, amid what only 1.1 takes for a number or a boolean.
_FORMS = (
    (_DOUBTFUL, r"[-+]?0[0-9_]+", "-+0"),  # 010 is 8 or 10
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    (_MERGE, r"<<", "<"),
    (_DOUBTFUL, r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", "yYnNoO"),
    (_DOUBTFUL, r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*(:[0-5]?[0-9])*)", "-+0123456789"),  # 1:30 is 90, or text
    (_DOUBTFUL, r"[-+]?([0-9][0-9_]*(:[0-5]?[0-9])*)?\.[0-9_]+([eE][-+][0-9]+)?", "-+.0123456789"),
)


def parse(text: str, *, of_massgen: bool = False) -> Any:  # noqa: ANN401 - what YAML can say
    """What a text says. Anchors, aliases and merge keys (``<<``) are taken, within a bound.

    Numbers and booleans are those of YAML 1.2's core schema, dates are text. A value that is another number, or a boolean, by
    YAML 1.1 alone (``1:30``, ``010``, ``1_000``, ``yes``, ``off``) is neither guessed nor handed on as text: it is refused,
    unless it is in quotes. Keys are text then. MassGen reads YAML 1.1, so ``of_massgen`` such words are its booleans.

    Raises:
        InvalidConfig: it is no YAML, or one of these; the message names the line and the key.
    """
    try:
        return yaml.load(text, _OfMassGen if of_massgen else _Loader)  # noqa: S506 - children of the safe loader
    except InvalidConfig:
        raise
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
        raise InvalidConfig(f"it is no YAML: {_problem(exc)}.") from exc


class _Loader(yaml.SafeLoader):
    """One that counts what aliases stand for, and takes neither a key twice nor a value that can be two things."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as PyYAML says it
    words_are_booleans = False

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.seen = 0
        self.aliased = 0
        self.sizes: dict[yaml.Node, int] = {}
        """How many values a finished node is, with all in it."""

    def compose_node(self, parent: Any, index: Any) -> Any:  # noqa: ANN401 - as PyYAML says it
        is_alias = self.check_event(yaml.AliasEvent)
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call] # it comes without types
        before = self.seen
        node: Any = super().compose_node(parent, index)
        if not is_alias:
            self.seen += 1
            self.sizes[node] = self.seen - before
            return node
        if node not in self.sizes:
            raise InvalidConfig(f"line {line}: an alias stands for what it is in itself: write it out.")
        self.seen += self.sizes[node]
        self.aliased += self.sizes[node]
        if self.aliased > ALIASED_MAX:
            raise InvalidConfig(f"line {line}: aliases stand for more than {ALIASED_MAX} values in all: use fewer of them.")
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:  # noqa: ANN401 - as PyYAML says it
        node: Any = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # it is refused when it is made
            if (key.tag, key.value) in seen:
                message = f"line {key.start_mark.line + 1}: {shorten(repr(key.value))} stands there twice: say it once."
                raise InvalidConfig(message)
            seen.add((key.tag, key.value))
            _check(key.value, value, words=self.words_are_booleans)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put what ``<<`` names in its place: a mapping's own keys come first, then those that are named first.

        PyYAML's own does so too, but for version 6.0.4, which lets a key that was merged deeper win over one that stands there.
        """
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        named = [value for key, value in node.value if key.tag == _MERGE]
        if not named:
            return
        found = {_identity(key): (key, value) for key, value in own}
        for each in [one for value in named for one in (value.value if isinstance(value, yaml.SequenceNode) else [value])]:
            if not isinstance(each, yaml.MappingNode):
                problem = f"expected a mapping to merge, but found a {each.id}"
                raise yaml.constructor.ConstructorError(None, None, problem, each.start_mark)
            self.flatten_mapping(each)
            for key, value in each.value:
                found.setdefault(_identity(key), (key, value))
        node.value = list(found.values())


class _OfMassGen(_Loader):
    """One that takes words for booleans as YAML 1.1 does."""

    words_are_booleans = True


def _identity(key: yaml.Node) -> Any:  # noqa: ANN401 - anything by which it is known again
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


def _check(key: str, node: yaml.Node, *, words: bool) -> None:
    """Refuse a value, or one in a list, that can be two things; but for ``words``, if they are to be booleans."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(key, item, words=words)
    elif node.tag == _DOUBTFUL and words and node.value.isalpha():
        node.tag = _BOOL
    elif node.tag == _DOUBTFUL:
        said, where = shorten(node.value), f"line {node.start_mark.line + 1}: {shorten(key)}"
        if said.isalpha():
            doubt, way = f"{said} is a boolean to some readers of YAML, and text to others", "true or false"
        else:
            doubt, way = f"{said} is one number to some readers of YAML, and another, or text, to others", "it in plain digits"
        raise InvalidConfig(f"{where}: {doubt}: say {way}, or put it in quotes where text is meant.")


def _problem(exc: Exception) -> str:
    """What PyYAML, or what it calls, says of a text, in one line."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        context = f"{exc.context}: " if exc.context else ""
        return f"line {exc.problem_mark.line + 1}: {context}{shorten(str(exc.problem), _PROBLEM_CHARS)}"
    return shorten(" ".join(str(exc).split()), _PROBLEM_CHARS)


def _key(loader: _Loader, node: Any) -> str:  # noqa: ANN401 - as PyYAML says it
    """What is not taken as a value is text as a key."""
    return str(loader.construct_scalar(node))


def _whole(loader: _Loader, node: Any) -> int:  # noqa: ANN401 - as PyYAML says it
    """A whole number: Python refuses to write very long ones, and so no message could show it."""
    if len(node.value) > _DIGITS_MAX:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {shorten(node.value)} has too many digits")
    return loader.construct_yaml_int(node)


for _tag, _pattern, _first in _FORMS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor(_DOUBTFUL, _key)
_Loader.add_constructor(_INT, _whole)
