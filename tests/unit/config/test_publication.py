"""`server.json`, the entry for registries of MCP servers: its form is valid, and its content true of this package."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

import kernelexec
from tests.end_to_end.test_readme import PROJECT
from tests.support.paths import ROOT

_ARGUMENT = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": ["named", "positional"]}, "value": {"type": "string"}, "name": {"type": "string"}},
    "oneOf": [
        {"required": ["name"], "properties": {"type": {"const": "named"}}},
        {"required": ["value"], "properties": {"type": {"const": "positional"}}},
    ],
}
#: As much of the schema of 2025-12-11 as is used.
SHAPE = {
    "type": "object",
    "required": ["$schema", "name", "description", "version", "packages"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "pattern": "/schemas/2025-12-11/server\\.schema\\.json$"},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "minLength": 3, "maxLength": 200},
        "title": {"type": "string", "minLength": 1, "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": {"type": "string", "pattern": "^[0-9][^<>=^~*]*$", "maxLength": 255},
        "packages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["registryType", "identifier", "version", "transport"],
                "properties": {
                    "registryType": {"enum": ["npm", "pypi", "oci", "nuget", "mcpb"]},
                    "identifier": {"type": "string"},
                    "version": {"type": "string", "not": {"const": "latest"}, "minLength": 1},
                    "runtimeHint": {"type": "string"},
                    "runtimeArguments": {"type": "array", "items": _ARGUMENT},
                    "packageArguments": {"type": "array", "items": _ARGUMENT},
                    "transport": {"type": "object", "required": ["type"], "properties": {"type": {"const": "stdio"}}},
                    "environmentVariables": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string", "pattern": "^[A-Z_]+$"},
                                "format": {"enum": ["string", "number", "boolean", "filepath"]},
                                "isRequired": {"type": "boolean"},
                                "isSecret": {"type": "boolean"},
                            },
                        },
                    },
                },
            },
        },
    },
}

SERVER: dict[str, Any] = json.loads((ROOT / "server.json").read_text(encoding="utf-8"))


def package() -> dict[str, Any]:
    [actual] = SERVER["packages"]
    return dict(actual)


def test_server_json_matches_the_registrys_schema() -> None:
    jsonschema.validate(SERVER, SHAPE)


def test_server_json_names_this_version_of_this_package() -> None:
    assert SERVER["version"] == package()["version"] == kernelexec.__version__
    assert package()["identifier"] == PROJECT["name"]


def test_a_client_that_puts_the_words_together_starts_the_server_with_what_it_needs() -> None:
    hint, actual = package()["runtimeHint"], package()
    before = [word for each in actual["runtimeArguments"] for word in (each["name"], each["value"])]
    words = [hint, *before, actual["identifier"], *(each["value"] for each in actual["packageArguments"])]
    assert words == ["uvx", "--from", f"kernelexec=={kernelexec.__version__}", "kernelexec", "mcp"]
    assert any(requirement.startswith("fastmcp") for requirement in PROJECT["dependencies"])
    assert actual["identifier"] in PROJECT["scripts"]


@pytest.mark.parametrize("name", [each["name"] for each in package()["environmentVariables"]])
def test_every_variable_that_is_named_is_read_by_the_package(name: str) -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "kernelexec").rglob("*.py"))
    assert any(f'"{name}"' in text for text in sources)


def test_the_readme_has_the_line_by_which_the_registry_knows_the_package() -> None:
    marks = re.findall(r"mcp-name:\s*(\S+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert marks == [SERVER["name"]]
