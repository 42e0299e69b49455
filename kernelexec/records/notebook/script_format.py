"""Scripts with ``# %%`` cells, as editors and jupytext write them, read as notebooks.

A line ``# %% title [markdown] key=value`` begins a cell: of code, of Markdown (``[markdown]`` or ``[md]``) or raw
(``[raw]``), with its title and options in its metadata. A script of jupytext begins with a header in YAML, in comments. Only
in such a script are commented magics (``# %matplotlib inline``, ``# !ls``) code, since jupytext comments them; in others
they may be what they seem.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

_CELL_MARK = re.compile(r"^# ?%%(?!%)(?P<title>.*)$", re.MULTILINE)
#: jupytext's own mark, which a commented magic such as ``# %%time`` is not.
_JUPYTEXT_MARK = re.compile(r"^# %%(?P<title>[ \t].*|[ \t]*)$", re.MULTILINE)
_HEADER = re.compile(r"\A(?:#!.*\n)?(?:\s*\n)*# ---[ \t]*\n(?P<lines>(?:#.*\n)*?)# ---[ \t]*(?:\n|\Z)")
_TYPES = {"markdown": "markdown", "md": "markdown", "raw": "raw"}
_TYPE = re.compile(r"\[(?P<type>markdown|md|raw)\]")
_OPTION = re.compile(r"(?:^|(?<=\s))(?P<key>[A-Za-z_][\w.-]*)=(?=\S)")
_COMMENT = re.compile(r"^# ?", re.MULTILINE)
_COMMENTED_MAGIC = re.compile(
    r"^(?P<indent>\s*)# ?(?P<code>(?:# ?)*(?:%{1,2}[A-Za-z]|!|\?|[A-Za-z_][\w, ]*=\s*[!%]))", re.MULTILINE
)
_QUOTED = re.compile(r"(?P<quotes>\"{3}|'{3})(?P<text>.*)(?P=quotes)", re.DOTALL)
_DECODER = json.JSONDecoder()


def read_script(text: str) -> dict[str, Any]:
    """Return the notebook of a script; parts without code or text are left out."""
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
    """Return the cell behind a mark."""
    marked = _TYPE.search(title)
    metadata = _read_options(_TYPE.sub("", title))
    if marked is not None:
        quoted = _QUOTED.fullmatch(source.strip())
        text = quoted["text"].strip("\n") if quoted else _COMMENT.sub("", source)
        return _make_cell(_TYPES[marked["type"]], text, metadata)
    return _read_code(source, metadata, is_jupytext=is_jupytext)


def _read_code(source: str, metadata: dict[str, Any], *, is_jupytext: bool) -> dict[str, Any]:
    """Return a cell of code. jupytext comments magics, and all of a cell whose magic has another ``language``."""
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
    metadata: dict[str, Any] = {}
    position, first = 0, None
    while (option := _OPTION.search(title, position)) is not None:
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
