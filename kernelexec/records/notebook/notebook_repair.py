"""The repair of notebooks in memory: what Jupyter would run is upgraded to the format 4.5, and each fault is counted.

nbclient reads a notebook without validation, so a notebook with faults of the schema runs there. Unknown types of cells and
additional keys stay as they are. Only notebooks before the format 4 need nbformat, which can take a second to import.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from typing import Any, TypeGuard

from kernelexec.results.json_values import is_count

#: The format of cells' ids, by the schema of the format 4.5.
_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
#: The keys without which a reader cannot show an output, by its type.
_OUTPUT_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "stream": {"name": str, "text": (str, list)},
    "display_data": {"data": dict, "metadata": dict},
    "execute_result": {"data": dict, "metadata": dict},
    "error": {"ename": str, "evalue": str, "traceback": list},
}
_OLD_TYPES = frozenset({"pyout", "pyerr", "stream", "display_data"})
_HEADING_LEVELS = range(1, 7)
#: The newest format, and the oldest of its minor versions whose cells have ids.
_FORMAT, _MINOR_WITH_IDS = 4, 5


class NotANotebook(ValueError):
    """The text is no notebook that Jupyter would run; the message completes "it is no notebook: ..."."""


def read_notebook(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return a notebook of the format 4.5 from its JSON text, and its repaired faults in words.

    Raises:
        NotANotebook: Jupyter would not run it either.
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
    """Return the notebook of the format 4 in a JSON text, converted from an older format if need be."""
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
    """Return a notebook of an older format as one of the format 4, without nbformat's own classes."""
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
    elif source is None:
        faults["cells without source"] += 1
        cell["source"] = ""
    elif not isinstance(source, str):
        raise NotANotebook(f"the source of {label} is not text")
    if not isinstance(cell.get("metadata"), dict):
        faults["cells without metadata"] += 1
        cell["metadata"] = {}
    tags = cell["metadata"].get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        faults["tags that are no list of texts"] += 1
        cell["metadata"]["tags"] = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    if cell["cell_type"] == "code":
        _repair_code_cell(cell, faults)
    elif cell["cell_type"] == "heading":
        faults["headings of the format 3"] += 1
        level = cell.pop("level", 1)
        marks = "#" * (level if level in _HEADING_LEVELS else 1)
        cell |= {"cell_type": "markdown", "source": f"{marks} {' '.join(cell['source'].splitlines())}"}
    return cell


def _repair_code_cell(cell: dict[str, Any], faults: Counter[str]) -> None:
    if not isinstance(cell.get("outputs"), list):
        faults["cells without outputs"] += 1
        cell["outputs"] = []
    if "execution_count" not in cell or not (cell["execution_count"] is None or is_count(cell["execution_count"])):
        faults["cells without execution_count"] += 1
        cell["execution_count"] = None
    outputs = [_repair_output(output, faults) for output in cell["outputs"]]
    cell["outputs"] = [output for output in outputs if output is not None]


def _repair_output(output: object, faults: Counter[str]) -> dict[str, Any] | None:
    """Return an output of the format 4, upgraded from the format 3 if need be; None if no reader could show it."""
    if isinstance(output, dict) and isinstance(output.get("data"), dict):
        output.setdefault("metadata", {})
    if _is_output(output):
        return output
    if isinstance(output, dict) and "data" not in output and output.get("output_type") in _OLD_TYPES:
        import nbformat  # noqa: PLC0415 - see above

        try:
            upgraded = json.loads(json.dumps(nbformat.v4.convert.upgrade_output(nbformat.from_dict(output))))
        except Exception:  # noqa: BLE001 - nbformat expects a valid output
            upgraded = None
        if _is_output(upgraded):
            faults["outputs of the format 3"] += 1
            return upgraded
    faults["outputs that cannot be shown, which are left out"] += 1
    return None


def _is_output(output: object) -> TypeGuard[dict[str, Any]]:
    """Return whether an output has the keys of its type."""
    if not isinstance(output, dict):
        return False
    keys = _OUTPUT_KEYS.get(str(output.get("output_type")))
    return keys is not None and all(isinstance(output.get(key), kind) for key, kind in keys.items())


def _repair_ids(cells: list[dict[str, Any]], faults: Counter[str], *, are_expected: bool) -> None:
    """Give each cell an id of its own; ``are_expected``: the format of the notebook has ids."""
    known: set[str] = set()
    for cell in cells:
        cell_id = cell.get("id")
        if not isinstance(cell_id, str) or not _CELL_ID.fullmatch(cell_id) or cell_id in known:
            if "id" in cell or are_expected:
                faults["cells without a valid id of their own"] += 1
            cell["id"] = secrets.token_hex(4)
        known.add(cell["id"])
