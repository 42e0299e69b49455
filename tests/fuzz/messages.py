"""Requests of MCP as a client might send them: made from the protocol's own schemas, then spoiled, from one seed."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, get_args

# The schemas of each revision: the package has no public name for them.
from mcp_types import _v2025_11_25 as legacy
from mcp_types import _v2026_07_28 as modern

_VERSIONS = {"modern": "2026-07-28", "legacy": "2025-11-25"}
_TEXTS = ["", " ", "default", "two", "../x", "/", "a" * 65, "x" * 20_000, "\0", "\u202e", "🦊", "null", "__proto__", "%00"]
_NUMBERS: list[Any] = [0, 1, -1, 0.001, 1e308, 2**31, 2**63, -(2**63), 10**400, 1e-9, True]
_VALUES = {"string": _TEXTS, "integer": _NUMBERS, "number": _NUMBERS, "boolean": [True, False]}
_ODD: list[Any] = [None, True, 0, -1, 2**64, "", "x", [], {}, [[]], {"a": {}}, [None]]
_ODD_HEADERS = ["", "x", "1" * 5000, "text/html", "2020-01-01", "../"]
#: Their senders, and the senders that spoiled headers may name.
AGENTS = ["fuzz-1", "fuzz-2", *(header for header in _ODD_HEADERS if len(header) < 200)]
_NESTED = [b"[" * 50_000, b'{"a":' * 20_000, b"[" * 500 + b"]" * 500]
_BYTES = [b"", b"null", b"[]", b"{}", b"\xff\xfe", b'"x"', b"5", b'{"jsonrpc": "2.0"', b"NaN", b"\0" * 100, *_NESTED]
#: The code, commands and files in them, which harm nothing and take no time.
_HARMLESS: dict[str, list[Any]] = {
    "code": ["1", "# nothing", "print(1)", "x = 1", "1/0", "'\\ud800'", ""],
    "command": ["true", "false", "echo a", ""],
    "wait": [0, 0.001, 1, -1, "1"],
    "session": ["default", "two", "nobody"],
    "path": ["a", "b/c", "..", "/etc/passwd", "", "."],
    "packages": [["six"], [], "six"],
    "cases": [["True"], ["1/0"], []],
    "name": [],
    "uri": ["kernelexec://sessions/default/notebook", "kernelexec://sessions/nobody/files/a", "file:///etc/passwd", "x"],
}
_SHARE_SPOILED, _DEPTH = 0.25, 5


@dataclass(slots=True)
class Message:
    """A request as it goes over the wire, and what may be known of its answer."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    id: object = None
    streams: bool = False
    """Whether its answer may be a stream that does not end."""


class Messages:
    """Makes messages from a seed, for a server with these tools, as ``tools/list`` gives them."""

    def __init__(self, seed: int, tools: list[dict[str, Any]]) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a test's numbers are no secrets
        self.sessions: list[str] = []  # of legacy clients
        self._tools = {tool["name"]: tool["inputSchema"] for tool in tools}
        self._schemas = {"modern": _schemas(modern.ClientRequest), "legacy": _schemas(legacy.ClientRequest)}
        self._number = 0

    def message(self) -> Message:
        """The next one."""
        if self.random.random() < 0.05:
            return Message(self.random.choice(_BYTES), self._headers("modern", "tools/call", ""))
        era = self.random.choice(["modern", "modern", "legacy"])
        method = self.random.choice([*self._schemas[era], "tools/call", "tools/call", "tools/call"])
        schema = self._schemas[era][method]
        request = self._made(schema, schema.get("$defs", {}), 0)
        params = request.get("params") if isinstance(request, dict) else None
        if not isinstance(request, dict):
            request = {}
        self._number += 1
        request |= {"jsonrpc": "2.0", "method": method, "id": self._number}
        if isinstance(params, dict):
            self._meant(params, era, method)
        name = params.get("name", params.get("uri", "")) if isinstance(params, dict) else ""
        headers = self._headers(era, method, name if isinstance(name, str) else "")
        if self._spoils():
            self._spoil(request)
        body = json.dumps(request).encode()
        if self.random.random() < 0.02:
            body = body[: self.random.randrange(len(body))]
        elif self.random.random() < 0.02:
            body = b"[" + body + b"," + body + b"]"
        return Message(body, headers, request.get("id"), streams=method in ("subscriptions/listen", "resources/subscribe"))

    def _meant(self, params: dict[str, Any], era: str, method: str) -> None:
        """Make it mostly a request that a server of this kind takes."""
        if era == "modern" and not self._spoils():
            params["_meta"] = {
                "io.modelcontextprotocol/protocolVersion": _VERSIONS[era],
                "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        if method == "tools/call" and not (self._spoils() and self._spoils()):
            name = params["name"] = self.random.choice(list(self._tools))
            schema = self._tools[name]
            params["arguments"] = self._made(schema, schema.get("$defs", {}), 0)
            params.pop("task", None)
        for key in ("requestState", "inputResponses"):
            if self.random.random() < 0.8:
                params.pop(key, None)

    def _headers(self, era: str, method: str, name: str) -> dict[str, str]:
        actual = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        actual["mcp-protocol-version"] = _VERSIONS[era]
        actual["x-kernelexec-agent"] = self.random.choice(AGENTS[:2])
        if era == "modern":
            actual |= {"mcp-method": method, "mcp-name": "".join(char for char in name[:100] if "!" <= char <= "~")}
        elif self.sessions and method != "initialize":
            actual["mcp-session-id"] = self.random.choice(self.sessions)
        if self.random.random() < 0.1:
            actual[self.random.choice(list(actual))] = self.random.choice(_ODD_HEADERS)
        return actual

    def _odd(self) -> Any:
        return deepcopy(self.random.choice(_ODD))  # what is made of it is changed later

    def _spoils(self) -> bool:
        return self.random.random() < _SHARE_SPOILED

    def _spoil(self, request: dict[str, Any]) -> None:
        key = self.random.choice([*request, "extra"])
        if key in request and self.random.random() < 0.4:
            del request[key]
        else:
            request[key] = self._odd()

    def _made(self, schema: Any, known: dict[str, Any], depth: int, name: str = "") -> Any:
        """A value that a schema allows, mostly."""
        if self.random.random() < 0.03:
            return self._odd()
        if self.random.random() < 0.9 and _HARMLESS.get(name):
            return self.random.choice(_HARMLESS[name])
        if "$ref" in schema:
            return self._made(known.get(schema["$ref"].rpartition("/")[2], {}), known, depth, name)
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self._made(self.random.choice(schema[several]), known, depth, name)
        if "const" in schema or "enum" in schema:
            return self.random.choice([schema["const"]] if "const" in schema else schema["enum"])
        return self._of_kind(schema, known, depth)

    def _of_kind(self, schema: dict[str, Any], known: dict[str, Any], depth: int) -> Any:
        inner = range(self.random.randrange(3) if depth < _DEPTH else 0)
        match schema.get("type"):
            case "object":
                return self._object(schema, known, depth) if depth < _DEPTH else {}
            case "array":
                return [self._made(schema.get("items", {}), known, depth + 1) for _ in inner]
            case str(kind):
                return self.random.choice(_VALUES[kind]) if kind in _VALUES else self._odd()
        return self._odd()

    def _object(self, schema: dict[str, Any], known: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        actual = {
            key: self._made(value, known, depth + 1, key)
            for key, value in schema.get("properties", {}).items()
            if (key in required) != (self.random.random() < 0.1) or self.random.random() < 0.3
        }
        if self.random.random() < 0.1:
            actual[self.random.choice(_TEXTS)] = self._odd()
        return actual


def _schemas(union: Any) -> dict[str, dict[str, Any]]:
    """The schemas of all requests, by their methods."""
    actual = (item.model_json_schema() for item in get_args(getattr(union, "__value__", union)))
    return {schema["properties"]["method"]["const"]: schema for schema in actual}
