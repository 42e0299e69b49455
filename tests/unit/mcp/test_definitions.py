"""Definitions of tools: as fastmcp would make them, without the libraries that it would import."""

from __future__ import annotations

import inspect
import json
from types import FunctionType
from typing import Any

import pytest
from fastmcp.tools import FunctionTool
from fastmcp.utilities.json_schema import dereference_refs

from kernelexec.mcp.server import inline_references, slim_arguments, wrap
from kernelexec.mcp.tools.code_tools import CodeTools, TestingTools
from kernelexec.mcp.tools.file_tools import FileTools
from kernelexec.mcp.tools.state_tools import VariableTools

FUNCTIONS = (CodeTools.list_sessions, VariableTools.list_variables, TestingTools.run_tests, FileTools.list_files)


def copy_of(function: Any) -> Any:
    """A function of its own: fastmcp remembers for the life of the process what it has read of one."""
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    copy.__annotations__, copy.__doc__ = dict(function.__annotations__), function.__doc__
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_references_are_inlined_as_fastmcp_does(function: Any) -> None:
    schema = FunctionTool.from_function(copy_of(function).__get__(object())).output_schema
    assert schema is not None
    assert "$ref" in json.dumps(schema)
    assert inline_references(schema) == dereference_refs(schema)


def test_words_beside_a_reference_take_precedence() -> None:
    schema = {
        "$defs": {
            "Row": {"type": "object", "description": "a row", "properties": {"next": {"$ref": "#/$defs/Count"}}},
            "Count": {"type": "integer"},
        },
        "properties": {
            "row": {"$ref": "#/$defs/Row", "description": "the first row"},
            "rows": {"items": [{"$ref": "#/$defs/Row"}]},
        },
    }
    row = {"type": "object", "properties": {"next": {"type": "integer"}}}
    rows = {"items": [row | {"description": "a row"}]}
    assert inline_references(schema) == {"properties": {"row": row | {"description": "the first row"}, "rows": rows}}


def test_an_optional_argument_is_its_type_and_may_be_omitted() -> None:
    text, number = {"type": "string"}, {"type": "number"}
    optional = {"anyOf": [text, {"type": "null"}], "default": None, "description": "a name"}
    either = {"anyOf": [text, number], "default": 1}
    schema = {"type": "object", "properties": {"name": optional, "own": either, "text": text}, "required": ["text"]}
    slim = {"name": text | {"description": "a name"}, "own": either, "text": text}
    assert slim_arguments(schema) == schema | {"properties": slim}


@pytest.mark.anyio
async def test_a_function_without_its_docstring_is_the_same_function() -> None:
    class Adder:
        async def add(self, left: int, right: int = 1) -> int:
            """Add."""
            return left + right

    method = Adder().add
    function = wrap(method)
    assert (inspect.signature(function), inspect.getdoc(function)) == (inspect.signature(method), "")
    assert await function(1, right=2) == 3
