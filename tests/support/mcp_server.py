"""An MCP server over HTTP, and the tokens and tools of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StreamableHttpTransport

from kernelexec.mcp.authentication import add_token
from tests.support.command_line import BOUND, COMMAND, LOCAL_SERVER, environment
from tests.support.mcp_clients import Agent, connected

TOOLS: dict[str, dict[str, Any]] = {
    "execute_code": {"code": "1"},
    "execute_command": {"command": "true"},
    "interrupt_kernel": {},
    "restart_kernel": {},
    "close_session": {},
    "list_variables": {},
    "set_variables": {"variables": {"x": 1}},
    "get_variable": {"name": "x"},
    "checkpoint": {},
    "restore": {"checkpoint": "1"},
    "undo": {},
    "branch": {"name": "other"},
    "promote": {},
    "start_background": {"command": "true"},
    "background_output": {"command_id": "shell_00000000"},
    "kill_background": {"command_id": "shell_00000000"},
    "list_background": {},
    "run_tests": {"cases": ["True"]},
    "install_packages": {"packages": ["six"]},
    "list_files": {},
    "read_file": {"path": "a"},
    "write_file": {"path": "a", "content": "b"},
    "edit_file": {"path": "a", "old_text": "b", "new_text": "c"},
    "delete_files": {"path": "a"},
    "wait_execution": {"execution_id": "0" * 32},
    "read_output": {"execution_id": "0" * 32},
}


class Server:
    """A running server, and how it is reached."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    @contextmanager
    def client(self, era: str = "auto", /, options: dict[str, Any] | None = None, **headers: str) -> Iterator[Agent]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with connected(StreamableHttpTransport(self.url, headers=named), era, **(options or {})) as agent:
            yield agent

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.split("/")[2].split(":")
        return host, int(port)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        connection = HTTPConnection(*self.address, timeout=BOUND)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            output = answer.read()
            return answer.status, json.loads(output) if output.startswith(b"{") else output
        finally:
            connection.close()


@contextmanager
def serving(cwd: Path, *args: str, **env: str) -> Iterator[Server]:
    words = [COMMAND, "mcp", "--http", *LOCAL_SERVER, *(args if "--socket" in args else ("--port", "0", *args))]
    with (
        (cwd / "stderr.txt").open("wb") as stderr,
        subprocess.Popen(words, cwd=cwd, env=environment(**env), stdin=subprocess.DEVNULL, stderr=stderr) as process,
    ):
        try:
            end = time.monotonic() + BOUND
            while not (output := [line for line in (cwd / "stderr.txt").read_text().splitlines() if "serving MCP at" in line]):
                assert process.poll() is None, (cwd / "stderr.txt").read_text()
                assert time.monotonic() < end
                time.sleep(0.05)  # another process says it in a file
            yield Server(process, output[0].rpartition(" ")[2])
        finally:
            process.kill()


def create_token(tokens: Path, name: str, *scopes: str) -> str:
    """Add a client to a file of tokens, as ``kernelexec mcp-token`` does; return its token."""
    return add_token(tokens, name, scopes or ("execute",))
