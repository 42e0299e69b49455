"""How soon an MCP server over stdio answers ``tools/list`` after its start, beside a server of fastmcp with one tool."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from tests.benchmarks.sessions import Found

BARE = "fastmcp, one tool"
_OURS, _CELL = "kernelexec", "kernelexec, first cell"
_PROGRAM = """
from fastmcp import FastMCP
server = FastMCP("bare")
@server.tool
def add(left: int, right: int) -> int:
    return left + right
server.run(show_banner=False)
"""
_COMMANDS = {BARE: ["-c", _PROGRAM], _OURS: ["-m", "kernelexec", "mcp", "--isolation", "local"]}
_CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "benchmark", "version": "0"}}
_CALL = {"name": "execute_code", "arguments": {"code": "1+1"}}
#: How long a server is left alone before its memory is read, in seconds.
_IDLE_SECONDS = 2.0


class RawClient:
    """A client that sends and reads lines, so that its own speed counts little."""

    def __init__(self, command: list[str], directory: str) -> None:
        self._began = time.perf_counter()
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, *command], cwd=directory, **pipes)
        self.request("initialize", _CLIENT)
        self._send({"method": "notifications/initialized"})

    def request(self, method: str, params: dict[str, Any] | None = None) -> float:
        """Send a request and wait for its answer; return the milliseconds since the start of the server."""
        self._send({"id": method, "method": method} | ({} if params is None else {"params": params}))
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (answer := json.loads(line)).get("id") == method:
                assert not answer["result"].get("isError"), answer
                return (time.perf_counter() - self._began) * 1000
        raise RuntimeError("the server has ended")

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.communicate()


def measure_starts(rounds: int) -> Found:
    """Start each server in turn; return the milliseconds to its list of tools, and to the end of a first cell after it."""
    times: Found = {BARE: [], _OURS: [], _CELL: []}
    for number in range(rounds):
        names = list(_COMMANDS)
        for name in names if number % 2 else reversed(names):
            with tempfile.TemporaryDirectory() as directory:
                client = RawClient(_COMMANDS[name], directory)
                times[name].append(client.request("tools/list"))
                if name == _OURS:
                    times[_CELL].append(client.request("tools/call", _CALL))
                client.close()
    return times


def measure_memory() -> dict[str, float]:
    """Return the MiB PSS of each server, alone after its list of tools."""
    memory = {}
    for name, command in _COMMANDS.items():
        with tempfile.TemporaryDirectory() as directory:
            client = RawClient(command, directory)
            client.request("tools/list")
            time.sleep(_IDLE_SECONDS)
            memory[name] = psutil.Process(client.process.pid).memory_full_info().pss / 2**20
            client.close()
    return memory
