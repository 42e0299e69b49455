"""Putting one entry into a TOML file of a person's, whose comments and layout stay as they are."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from kernelexec.config.jsonc import Malformed


def parsed(text: str) -> dict[str, Any]:
    """What a text in TOML says.

    Raises:
        Malformed: it is none.
    """
    try:
        tomlkit.parse(text)
        return tomllib.loads(text)
    except ParseError as exc:
        raise Malformed(exc.line, str(exc)) from exc
    except (TOMLKitError, ValueError, RecursionError) as exc:
        raise Malformed(1, str(exc)) from exc


def with_entry(text: str, section: str, name: str, entry: Mapping[str, Any]) -> str:
    """The text with a table in a table of tables, in the place of one of that name; all else as it was.

    Raises:
        Malformed: it cannot be read, or has no such form.
    """
    before = parsed(text)
    if not isinstance(before.get(section, {}), dict):
        raise Malformed(1, f"{section}: a table is expected")
    document = tomlkit.parse(text)
    table = tomlkit.table()
    table.update(entry)
    servers: Any = document.get(section)
    if servers is None:
        document[section] = tomlkit.table(is_super_table=True)
        servers = document[section]
    assert isinstance(servers, MutableMapping)
    servers[name] = table
    made = tomlkit.dumps(document)
    if parsed(made) != before | {section: before.get(section, {}) | {name: dict(entry)}}:
        raise Malformed(1, "it has a form that an entry cannot be put into")
    return made
