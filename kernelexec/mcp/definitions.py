"""Definitions of tools and prompts in the form that fastmcp registers without further libraries.

It would import a parser for docstrings, and a resolver with an HTTP library for references in schemas: together 0.04 s of the
start of a server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_DEFINITIONS = "#/$defs/"


def drop_docstring(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Return the same function without a docstring, for tools and prompts whose description is passed beside it."""

    @wraps(function)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        return await function(*args, **options)

    call.__doc__ = ""  # None would stand for the docstring of the class's method
    return call


def slim_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments without null, for which an optional argument is omitted: models read it all."""
    return schema | {"properties": {name: _slim(argument) for name, argument in schema["properties"].items()}}


def _slim(argument: dict[str, Any]) -> dict[str, Any]:
    types = argument.get("anyOf", [])
    if argument.get("default", ...) is not None or types[1:] != [{"type": "null"}]:
        return argument
    return {**types[0], **{name: value for name, value in argument.items() if name not in {"anyOf", "default"}}}


def inline_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions in the place of references, as clients need it; no type may contain itself."""
    definitions = schema.get("$defs", {})

    def inline(value: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, list):
            return [inline(item) for item in value]
        if not isinstance(value, dict):
            return value
        own = {key: inline(item) for key, item in value.items() if key not in {"$ref", "$defs"}}
        return inline(definitions[value["$ref"].removeprefix(_DEFINITIONS)]) | own if "$ref" in value else own

    inlined: dict[str, Any] = inline(schema)
    return inlined
