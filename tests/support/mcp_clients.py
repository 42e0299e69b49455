"""Clients of the MCP server: fastmcp's own, called from plain tests, and a raw one that sees every byte."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastmcp import Client, FastMCP
from fastmcp.client.client import CallToolResult
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

from tests.support.command_line import BOUND, COMMAND, LOCAL_SERVER, environment
from tests.support.mcp_in_memory import InMemory
from tests.support.pace import until

#: How a client begins, as fastmcp names it: the newest protocol, or the handshake of all before it.
BOTH_ERAS = ["auto", "legacy"]
#: The same, where the handshake makes no difference that another test does not show: then it is tried at night.
ERAS = ["auto", pytest.param("legacy", marks=pytest.mark.nightly)]
#: What each request of the newest protocol says of its client.
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


#: The first line of the answer to a cell that ended as expected.
_EXPECTED = re.compile(r"\[ok · \d+\.\d\d s · state kept\](?:\n|\Z)")
#: What a request says that asks for all fields of an answer.
WHOLE: dict[str, Any] = {"kernelexec/record": "whole"}


class Agent:
    """A connected client; every answer comes as it is, errors too."""

    def __init__(self, portal: BlockingPortal, client: Client[Any]) -> None:
        self.portal = portal
        self.client = client

    def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        return self.start(tool, **arguments).result(BOUND)

    def start(self, tool: str, /, **arguments: Any) -> Future[CallToolResult]:
        call = partial(self.client.call_tool, tool, arguments, raise_on_error=False, meta=WHOLE)
        return self.portal.start_task_soon(call)

    def until(self, words: str, tool: str, /, **arguments: Any) -> CallToolResult:
        """Call a tool again and again until its answer has these words; that answer."""
        answers = list[CallToolResult]()

        def has_words() -> bool:
            answers.append(self.call(tool, **arguments))
            return words in text_of(answers[-1])

        until(has_words)
        return answers[-1]

    def begin(self, words: str, /, **arguments: Any) -> CallToolResult:
        """Begin a cell that goes on for long; the answer about it once it has written these words."""
        begun = self.call("execute_code", wait=0, timeout=700, **arguments)
        return self.until(words, "wait_execution", execution_id=record_of(begun)["execution_id"], wait=0)

    def do(self, method: str, /, *args: Any, **options: Any) -> Any:
        return self.portal.call(partial(getattr(self.client, method), *args, **options))

    def rows(self, tool: str, field: str, /, **arguments: Any) -> list[dict[str, Any]]:
        actual = self.call(tool, **arguments).structured_content
        assert actual is not None
        rows: list[dict[str, Any]] = actual[field]
        return rows

    def text(self, tool: str, /, **arguments: Any) -> str:
        return output_of(self.call(tool, **arguments))


def output_of(result: CallToolResult) -> str:
    """Return the text of an answer, without a first line that says only that a cell ended as expected."""
    return without_head(text_of(result))


def without_head(text: str) -> str:
    return text[head.end() :] if (head := _EXPECTED.match(text)) else text


def text_of(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


def links_of(result: CallToolResult) -> list[str]:
    """Return the names of the files that an answer links to."""
    return [block.name for block in result.content if block.type == "resource_link"]


def record_of(result: CallToolResult) -> dict[str, Any]:
    assert result.meta is not None
    record: dict[str, Any] = result.meta["kernelexec/result"]
    return record


@contextmanager
def connected(
    server: StdioTransport | StreamableHttpTransport | FastMCP | InMemory, era: str, **options: Any
) -> Iterator[Agent]:
    with start_blocking_portal() as portal, ExitStack() as stack:
        reached = stack.enter_context(server.opened(portal)) if isinstance(server, InMemory) else server
        client = Client(reached, mode=era, **options)
        yield Agent(portal, stack.enter_context(portal.wrap_async_context_manager(client)))


def transport(cwd: Path, *args: str, **env: str) -> StdioTransport:
    """The installed command, started by the client."""
    log = cwd / "stderr.txt"
    words = ["mcp", *LOCAL_SERVER, *args]
    return StdioTransport(COMMAND, words, env=environment(**env), cwd=str(cwd), keep_alive=False, log_file=log)


class Raw:
    """A client that writes and reads lines itself, in either era's framing."""

    def __init__(self, process: subprocess.Popen[bytes], era: str) -> None:
        self.process = process
        self.era = era
        self.lines: list[bytes] = []
        self.progress = ""
        self._number = 0
        if era == "legacy":
            version, client = "2025-06-18", {"name": "raw", "version": "1"}
            self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo=client)
            self.answer()
            self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message: object) -> None:
        self.write(json.dumps(message).encode())

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, /, **params: Any) -> int:
        self._number += 1
        meta = WHOLE | (ENVELOPE if self.era == "auto" else {}) | ({"progressToken": self.progress} if self.progress else {})
        self.send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params | {"_meta": meta}})
        return self._number

    def call(self, tool: str, /, **arguments: Any) -> int:
        return self.ask("tools/call", name=tool, arguments=arguments)

    def answer(self, number: int | None = None) -> dict[str, Any]:
        """The next answer to a request, or the one to that request."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self.lines.append(line)
            actual: dict[str, Any] = json.loads(line)
            if "method" not in actual and number in (None, actual["id"]):
                return actual
        raise EOFError

    def hear(self, words: str) -> dict[str, Any]:
        """The next message that has these words and is no answer."""
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self.lines.append(line)
            actual: dict[str, Any] = json.loads(line)
            assert "method" in actual, f"an answer before {words!r}: {actual}"
            if words.encode() in line:
                return actual
        raise EOFError

    def end(self) -> tuple[list[dict[str, Any]], str]:
        """Every line of stdout that there was, read as JSON, and stderr, once the process has ended."""
        stdout, stderr = self.process.communicate(timeout=BOUND)
        return [json.loads(line) for line in [*self.lines, *stdout.splitlines()]], stderr.decode()


@contextmanager
def raw(cwd: Path, era: str, *args: str, **env: str) -> Iterator[Raw]:
    pipe = subprocess.PIPE
    words = [COMMAND, "mcp", *LOCAL_SERVER, *args]
    with subprocess.Popen(words, cwd=cwd, env=environment(**env), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield Raw(process, era)
        finally:
            process.kill()
