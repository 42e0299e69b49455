"""Notebooks of the format 4.5 in memory: repaired from other formats, read from scripts, and given parameters.

All notebooks that Jupyter would run are upgraded, and each fault is counted. nbclient reads a notebook without validation, so
notebooks with faults of the schema run there. Unknown types of cells and additional keys stay unchanged. Only notebooks before
the format 4 need nbformat, which can take a second to import.

Scripts have ``# %%`` cells, as written by editors and jupytext. A line ``# %% title [markdown] key=value`` begins a cell: of
code, of Markdown (``[markdown]`` or ``[md]``) or raw (``[raw]``), with title and options in the metadata. A script of jupytext
begins with a header in YAML, in comments. Only there are commented magics (``# %matplotlib inline``, ``# !ls``) code, since
jupytext comments magics; in other scripts they may be mere comments.

Parameters are assignments in a cell of their own, in the place and the form of papermill.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeGuard

from kernelexec.errors import InvalidRequest
from kernelexec.results.json_values import is_count

#: The format of cells' ids, by the schema of the format 4.5.
_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: The required keys of an output by type; readers cannot show an output without them.
_OUTPUT_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "stream": {"name": str, "text": (str, list)},
    "display_data": {"data": dict, "metadata": dict},
    "execute_result": {"data": dict, "metadata": dict},
    "error": {"ename": str, "evalue": str, "traceback": list},
}
#: The newest format, and the first of its minor versions with ids of cells.
_FORMAT, _MINOR_WITH_IDS = 4, 5
_CELL_MARK = re.compile(r"^# ?%%(?!%)(?P<title>.*)$", re.MULTILINE)
#: jupytext's own mark; ``# %%time`` is a commented magic instead.
_JUPYTEXT_MARK = re.compile(r"^# %%(?P<title>[ \t].*|[ \t]*)$", re.MULTILINE)
_HEADER = re.compile(r"\A(?:#!.*\n)?\s*+(?<![^\n])# ---[ \t]*\n(?P<lines>(?:#.*\n)*?)# ---[ \t]*(?:\n|\Z)")
_TYPES = {"markdown": "markdown", "md": "markdown", "raw": "raw"}
_TYPE = re.compile(r"\[(?P<type>markdown|md|raw)\]")
_OPTION = re.compile(r"(?:^|(?<=\s))(?P<key>[A-Za-z_][\w.-]*)=(?=\S)")
_COMMENT = re.compile(r"^# ?", re.MULTILINE)
_COMMENTED_MAGIC = re.compile(
    r"^(?P<indent>[ \t]*+)# ?(?P<code>(?:# ?)*(?:%{1,2}[A-Za-z]|!|\?|[A-Za-z_][\w, ]*=\s*[!%]))", re.MULTILINE
)
#: A longer line has no options: each costs a look at the rest of the line.
_TITLE_CHARS = 10_000
_QUOTED = re.compile(r"(?P<quotes>\"{3}|'{3})(?P<text>.*)(?P=quotes)", re.DOTALL)
_DECODER = json.JSONDecoder()
#: The tags of the cell with defaults and of the cell with the values of a run.
_DEFAULTS, _INJECTED = "parameters", "injected-parameters"
_WORDS = {"True": True, "False": False, "None": None}
_DEPTH_MAX = 50


class NotANotebook(ValueError):
    """A text that Jupyter would not run as a notebook; the message completes "it is no notebook: ..."."""


def read_notebook(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return a notebook of the format 4.5 from its JSON text, and its repaired faults in words.

    Raises:
        NotANotebook: Jupyter would not run the notebook either.
    """
    notebook = _parse(text)
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        raise NotANotebook("it has no list of cells")
    faults: Counter[str] = Counter()
    if not isinstance(notebook.get("metadata"), dict):
        faults["a notebook without metadata"] += 1
        notebook["metadata"] = {}
    notebook["cells"] = [_repair_cell(cell, f"cell {number}", faults) for number, cell in enumerate(cells, 1)]
    minor = notebook.get("nbformat_minor")
    _repair_ids(notebook["cells"], faults, are_expected=minor not in range(_MINOR_WITH_IDS))
    notebook["nbformat_minor"] = max(_MINOR_WITH_IDS, minor) if is_count(minor) else _MINOR_WITH_IDS
    return notebook, [f"{fault} ({count})" if count > 1 else fault for fault, count in faults.items()]


def _parse(text: str) -> dict[str, Any]:
    """Return the notebook in a JSON text, converted from an older format to the format 4 if necessary."""
    try:
        notebook = json.loads(text)
    except json.JSONDecodeError as exc:
        raise NotANotebook(f"it is not JSON (line {exc.lineno}, column {exc.colno})") from exc
    except (ValueError, RecursionError) as exc:
        raise NotANotebook("its JSON has a number too long or is nested too deeply") from exc
    if not isinstance(notebook, dict):
        raise NotANotebook("it is JSON, but not an object with cells")
    if "nbformat" not in notebook and "cells" not in notebook and "worksheets" not in notebook:
        raise NotANotebook("it has neither a format version (nbformat) nor cells")
    version = notebook.setdefault("nbformat", _FORMAT if "cells" in notebook else 3)
    if not is_count(version) or not 1 <= version <= _FORMAT:
        raise NotANotebook(f"its format version (nbformat) is {version!r:.40}, and only 1 to 4 are known")
    return notebook if version == _FORMAT else _convert(notebook, version)


def _convert(notebook: dict[str, Any], version: int) -> dict[str, Any]:
    """Convert a notebook of an older format to the format 4, without nbformat's own classes."""
    import nbformat  # noqa: PLC0415 - see above

    try:
        converted = nbformat.convert(nbformat.reader.reads(json.dumps(notebook)), _FORMAT)
        return dict(json.loads(json.dumps(converted)))
    except Exception as exc:  # nbformat validates nothing before it converts
        raise NotANotebook(f"it is of the format {version}, but its cells are not of that format") from exc


def _repair_cell(cell: object, label: str, faults: Counter[str]) -> dict[str, Any]:
    if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
        raise NotANotebook(f"{label} has no type (cell_type)")
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        cell["source"] = "".join(source)
    elif source is not None and not isinstance(source, str):
        raise NotANotebook(f"the source of {label} is not text")
    _set_default(cell, "source", str, "", faults)
    _set_default(cell, "metadata", dict, {}, faults)
    tags = cell["metadata"].get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        faults["tags that are no list of texts"] += 1
        cell["metadata"]["tags"] = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    if cell["cell_type"] == "code":
        _set_default(cell, "outputs", list, [], faults)
        if "execution_count" not in cell or not (cell["execution_count"] is None or is_count(cell["execution_count"])):
            faults["cells without execution_count"] += 1
            cell["execution_count"] = None
        cell["outputs"] = [output for output in cell["outputs"] if _repair_output(output, faults)]
    return cell


def _set_default(cell: dict[str, Any], key: str, kind: type, default: object, faults: Counter[str]) -> None:
    """Set a missing key of a cell, or a value of another kind, to the default."""
    if not isinstance(cell.get(key), kind):
        faults[f"cells without {key}"] += 1
        cell[key] = default


def _repair_output(output: object, faults: Counter[str]) -> bool:
    """Add missing metadata to an output; return whether a reader can show the output."""
    if isinstance(output, dict) and isinstance(output.get("data"), dict):
        output.setdefault("metadata", {})
    if not (is_output := _is_output(output)):
        faults["outputs that cannot be shown, which are left out"] += 1
    return is_output


def _is_output(output: object) -> TypeGuard[dict[str, Any]]:
    """Return whether an output has the keys of its type."""
    if not isinstance(output, dict):
        return False
    keys = _OUTPUT_KEYS.get(str(output.get("output_type")))
    return keys is not None and all(isinstance(output.get(key), kind) for key, kind in keys.items())


def _repair_ids(cells: list[dict[str, Any]], faults: Counter[str], *, are_expected: bool) -> None:
    """Give each cell a unique id; ``are_expected`` means that the notebook's format has ids."""
    known: set[str] = set()
    for cell in cells:
        cell_id = cell.get("id")
        if not isinstance(cell_id, str) or not _CELL_ID.fullmatch(cell_id) or cell_id in known:
            if "id" in cell or are_expected:
                faults["cells without a valid id of their own"] += 1
            cell["id"] = secrets.token_hex(4)
        known.add(cell["id"])


def read_script(text: str) -> dict[str, Any]:
    """Return a script as a notebook, without empty parts."""
    cells: list[dict[str, Any]] = []
    header, metadata = _HEADER.match(text), dict[str, Any]()
    if header is not None:
        metadata, rest = _read_header(_COMMENT.sub("", header["lines"]))
        text = text[header.end() :]
        if rest:
            cells.append(_make_cell("raw", rest, {}))
    is_jupytext = "jupytext" in metadata
    marks = list((_JUPYTEXT_MARK if is_jupytext else _CELL_MARK).finditer(text))
    ends = [mark.start() for mark in marks] + [len(text)]
    if text[: ends[0]].strip():
        cells.append(_read_code(text[: ends[0]].strip("\n\r"), {}, is_jupytext=is_jupytext))
    for mark, end in zip(marks, ends[1:], strict=True):
        source = text[mark.end() : end]
        if source.strip():
            cells.append(_read_cell(mark["title"], source.strip("\n\r"), is_jupytext=is_jupytext))
    for number, cell in enumerate(cells, 1):
        cell["id"] = f"cell-{number}"
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _read_header(text: str) -> tuple[dict[str, Any], str]:
    """Return the notebook's metadata in a YAML header, and the rest of the header as text."""
    import yaml  # noqa: PLC0415 - few scripts have a header

    content: Any = None
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        content = yaml.safe_load(text)
    jupyter = content.pop("jupyter", None) if isinstance(content, dict) else None
    if not isinstance(jupyter, dict):
        return {}, f"---\n{text}---" if text.strip() else ""
    rest = yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else ""
    return json.loads(json.dumps(jupyter, default=str)), f"---\n{rest}---" if rest else ""


def _read_cell(title: str, source: str, *, is_jupytext: bool) -> dict[str, Any]:
    """Return the cell after a mark."""
    marked = _TYPE.search(title)
    metadata = _read_options(_TYPE.sub("", title))
    if marked is not None:
        quoted = _QUOTED.fullmatch(source.strip())
        text = quoted["text"].strip("\n") if quoted else _COMMENT.sub("", source)
        return _make_cell(_TYPES[marked["type"]], text, metadata)
    return _read_code(source, metadata, is_jupytext=is_jupytext)


def _read_code(source: str, metadata: dict[str, Any], *, is_jupytext: bool) -> dict[str, Any]:
    """Return a cell of code. jupytext comments magics, and the whole cell under a magic of another ``language``."""
    language = metadata.get("language")
    if is_jupytext and isinstance(language, str):
        del metadata["language"]
        arguments = metadata.pop("magic_args", "")
        source = f"%%{language} {arguments}".rstrip() + f"\n{_COMMENT.sub('', source)}"
    elif is_jupytext:
        source = _COMMENTED_MAGIC.sub(r"\g<indent>\g<code>", source)
    return _make_cell("code", source, metadata)


def _read_options(title: str) -> dict[str, Any]:
    """Return the title and the options of a mark as metadata: values in JSON, or single words."""
    # Values are decoded in their place, since a value in JSON may contain blanks and further "key=".
    metadata: dict[str, Any] = {}
    position, first = 0, None
    while len(title) <= _TITLE_CHARS and (option := _OPTION.search(title, position)) is not None:
        first = option.start() if first is None else first
        try:
            metadata[option["key"]], position = _DECODER.raw_decode(title, option.end())
        except ValueError:
            word = title[option.end() :].split(maxsplit=1)[0]
            metadata[option["key"]], position = word, option.end() + len(word)
        except RecursionError:
            break
    words = title[:first].strip()
    tags = metadata.get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        del metadata["tags"]
    return {"title": words, **metadata} if words else metadata


def _make_cell(cell_type: str, source: str, metadata: dict[str, Any]) -> dict[str, Any]:
    code: dict[str, Any] = {"outputs": [], "execution_count": None} if cell_type == "code" else {}
    return {"cell_type": cell_type, "metadata": metadata, "source": source, **code}


def read_value(text: str) -> Any:  # noqa: ANN401 - of any kind
    """Return the value of a parameter from its text: a number, True, False or None if readable as such, else the text."""
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def inject_parameters(notebook: dict[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Add a cell with assignments of the values.

    The cell replaces an injected cell, else follows the cell tagged ``parameters``, else is the first.

    Returns:
        Names without an assignment in the cell tagged ``parameters``: they may be mistyped.

    Raises:
        InvalidRequest: a name or a value cannot be written in Python.
    """
    source = "".join(["# Parameters\n", *(f"{_check_name(name)} = {_write(value, name)}\n" for name, value in values.items())])
    cell = _make_cell("code", source, {"tags": [_INJECTED]}) | {"id": secrets.token_hex(4)}
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
    """Return the names assigned at the top level of a cell; none for a cell that is not plain Python."""
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
