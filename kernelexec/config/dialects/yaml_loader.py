"""A YAML loader for settings. Keys must be unique, aliases are bounded, and ambiguous numbers are text."""

from __future__ import annotations

import re
from typing import Any

import yaml

from kernelexec.config.types import shorten
from kernelexec.errors import InvalidConfig

#: The number of values that all aliases of one text may expand to, since a few aliases can expand to any amount.
ALIASED_MAX = 10_000
_DIGITS_MAX = 100
_PROBLEM_CHARS = 120
_BOOL, _FLOAT, _INT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"
_MERGE, _NULL = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:null"
#: The forms of plain values that are not text. YAML 1.1 and 1.2 agree on all of these numbers.
_FORMS = (
    (_NULL, r"~|null|Null|NULL|", ("~", "n", "N", "")),
    (_BOOL, r"true|True|TRUE|yes|Yes|YES|on|On|ON|false|False|FALSE|no|No|NO|off|Off|OFF", "tTfFyYnNoO"),
    (_INT, r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (_FLOAT, r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    (_FLOAT, r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    (_MERGE, r"<<", "<"),
)


def parse(text: str) -> Any:  # noqa: ANN401 - any YAML
    """Return the value of a YAML text. Anchors, aliases and merge keys (``<<``) are supported within a bound.

    ``yes``, ``no``, ``on`` and ``off`` are booleans as in YAML 1.1. Dates, and plain values that versions of YAML read as
    different numbers (``1:30``, ``010``, ``1_000``), are text, which numeric options reject.

    Raises:
        InvalidConfig: the text is not YAML, or exceeds a bound; the message names the line.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a child of the safe loader
    except InvalidConfig:
        raise
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
        raise InvalidConfig(f"must be YAML: {_describe_problem(exc)}.") from exc


class _Loader(yaml.SafeLoader):
    """The safe loader with a bound on aliases, unique keys, and the forms above."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - as PyYAML declares it

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.seen = 0
        self.aliased = 0
        self.sizes: dict[yaml.Node, int] = {}
        """The number of values in each finished node."""

    def compose_node(self, parent: Any, index: Any) -> Any:  # noqa: ANN401 - as PyYAML declares it
        is_alias = self.check_event(yaml.AliasEvent)
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call] # it comes without types
        # `seen` counts nodes with aliases expanded, so the difference is the expanded size of this node. Ten lists of ten
        # aliases of the list before are ten lines, and 10,000,000,000 values.
        before = self.seen
        node: Any = super().compose_node(parent, index)
        if not is_alias:
            self.seen += 1
            self.sizes[node] = self.seen - before
            return node
        # A node without a size is not finished: the alias is inside of its own anchor, and the value would never end.
        if node not in self.sizes:
            raise InvalidConfig(f"line {line}: an alias must not be inside its own anchor: write the value out.")
        self.seen += self.sizes[node]
        self.aliased += self.sizes[node]
        if self.aliased > ALIASED_MAX:
            raise InvalidConfig(f"line {line}: all aliases must expand to at most {ALIASED_MAX} values: use fewer of them.")
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:  # noqa: ANN401 - as PyYAML declares it
        node: Any = super().compose_mapping_node(anchor)
        seen: set[object] = set()
        for key, _ in node.value:
            if (identity := _key_identity(key)) in seen:
                message = f"line {key.start_mark.line + 1}: {shorten(repr(key.value))} is set twice: every key must be unique."
                raise InvalidConfig(message)
            seen.add(identity)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace ``<<`` by the merged keys. A mapping's own keys win, then those of the first merged mapping.

        In PyYAML 6.0.4 a nested merged key wins over the mapping's own key; other versions behave as this method.
        """
        # Called again for a node that several mappings merge: then it has no merge keys left.
        named = [value for key, value in node.value if key.tag == _MERGE]
        if not named:
            return
        pairs = {_key_identity(key): (key, value) for key, value in node.value if key.tag != _MERGE}
        for value in named:
            for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(each, yaml.MappingNode):
                    problem = f"expected a mapping to merge, but found a {each.id}"
                    raise yaml.constructor.ConstructorError(None, None, problem, each.start_mark)
                self.flatten_mapping(each)
                for key, merged in each.value:
                    pairs.setdefault(_key_identity(key), (key, merged))
        node.value = list(pairs.values())


def _key_identity(key: yaml.Node) -> object:
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


def _describe_problem(exc: Exception) -> str:
    """Describe the problem of a text in a line."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        context = f"{exc.context}: " if exc.context else ""
        return f"line {exc.problem_mark.line + 1}: {context}{shorten(str(exc.problem), _PROBLEM_CHARS)}"
    return shorten(" ".join(str(exc).split()), _PROBLEM_CHARS)


def _construct_int(loader: _Loader, node: Any) -> int:  # noqa: ANN401 - as PyYAML declares it
    """Return a whole number. Very long ones are rejected, because Python cannot convert them to text for a message."""
    if len(node.value) > _DIGITS_MAX:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {shorten(node.value)} must have at most {_DIGITS_MAX} digits")
    return loader.construct_yaml_int(node)


for _tag, _pattern, _first in _FORMS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), list(_first))
_Loader.add_constructor(_INT, _construct_int)
