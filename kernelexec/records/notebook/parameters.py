"""Parameters of a notebook: assignments in a cell of their own, where papermill puts them and as papermill writes them."""

from __future__ import annotations

import ast
import keyword
import math
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kernelexec.errors import InvalidRequest

#: The tag of the cell with the defaults, and that of the cell with the values of one run.
_DEFAULTS, _INJECTED = "parameters", "injected-parameters"
_WORDS = {"True": True, "False": False, "None": None}
_DEPTH_MAX = 50


def read_value(text: str) -> Any:  # noqa: ANN401 - of any kind
    """Return the value of a parameter as text: a number, True, False or None where it reads as one, else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def inject_parameters(notebook: dict[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Add a cell that assigns the values: in the place of an injected one, else after that tagged ``parameters``, else first.

    Returns:
        The names that the cell tagged ``parameters`` does not assign, since they may be mistyped.

    Raises:
        InvalidRequest: a name or a value cannot be written in Python.
    """
    source = "".join(["# Parameters\n", *(f"{_check_name(name)} = {_write(value, name)}\n" for name, value in values.items())])
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": [_INJECTED]},
        "outputs": [],
        "source": source,
    }
    if notebook["nbformat_minor"] >= 5:  # noqa: PLR2004 - the format that has ids
        cell["id"] = uuid.uuid4().hex[:8]
    cells = notebook["cells"]
    injected, defaults = _find(cells, _INJECTED), _find(cells, _DEFAULTS)
    if injected is not None:
        cells[injected] = cell
    else:
        cells.insert(0 if defaults is None else defaults + 1, cell)
    assigned = set() if defaults is None else _assigned_names(cells[defaults]["source"])
    return tuple(name for name in values if name not in assigned)


def _find(cells: list[dict[str, Any]], tag: str) -> int | None:
    tagged = (number for number, cell in enumerate(cells) if tag in cell["metadata"].get("tags", []))
    return next(tagged, None)


def _assigned_names(source: str) -> set[str]:
    """Return the names that a cell assigns at its top level; none if it is not plain Python."""
    try:
        nodes = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return set()
    targets = [target for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in nodes if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidRequest(f"The parameter {name!r:.100} must have the name of a Python variable.")
    return name


def _write(value: Any, name: str, depth: int = 0) -> str:  # noqa: ANN401 - of any kind
    if depth > _DEPTH_MAX:
        raise InvalidRequest(f"The parameter {name} is nested more than {_DEPTH_MAX} deep.")
    match value:
        case None | bool() | int():
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f"float('{value}')"
        case str():
            escaped = value.encode("unicode_escape").decode().replace('"', '\\"')
            return f'"{escaped}"'
        case list() | tuple():
            return f"[{', '.join(_write(item, name, depth + 1) for item in value)}]"
        case dict():
            items = (f"{_write(str(key), name, depth + 1)}: {_write(item, name, depth + 1)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
    raise InvalidRequest(f"The parameter {name} must be a number, text, True, False, None, a list or a mapping.")
