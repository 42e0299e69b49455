"""The start of a server over stdio: what its first answers do without, and calls that come before the executor is open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import BOUND, environment
from tests.support.mcp_clients import raw

#: Modules and libraries that a kernel needs and the list of tools does not: they took a third of the start.
NOT_NEEDED = {
    *("kernelexec.executor.registry", "kernelexec.session.session", "kernelexec.kernel", "kernelexec.rules.policy.policy"),
    *(
        "kernelexec.cli.run",
        "kernelexec.cli.doctor",
        "kernelexec.executor.control.control_socket",
        "kernelexec.mcp.http_server",
    ),
    *(
        "jupyter_client",
        "zmq",
        "IPython",
        "ipykernel",
        "nbformat",
        "regex",
        "tree_sitter",
        "packaging.pylock",
        "yaml",
        "docker",
    ),
    *("griffe", "jsonref", "requests", "PIL"),
}
LIST_TOOLS = f"""
import asyncio, sys, types
from kernelexec.cli import application
application.load_application("mcp.mcp_app")
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.mcp import serve
from kernelexec.mcp.run import Opening
from kernelexec.mcp.server import make_server
from kernelexec.mcp.sessions import SessionService
sys.modules["kernelexec.docker.client"] = types.SimpleNamespace(probe=lambda: None)  # an engine that answers
server = make_server(SessionService(AsyncExecutor(sys.argv[1]), interval=1.0), opening=Opening())
tools = asyncio.run(server.list_tools())
print(len(tools), sorted({NOT_NEEDED!r} & set(sys.modules)))
"""


@pytest.mark.parametrize("isolation", ["local", "container"])
def test_the_list_of_tools_needs_no_part_of_a_session(isolation: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIST_TOOLS, isolation]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=BOUND)
    assert done.stdout.split(maxsplit=1)[1:] == ["[]\n"], done.stderr


@pytest.mark.nightly  # in the gate a test of what is on stdout begins with such a call
def test_a_call_that_comes_first_runs(tmp_path: Path) -> None:
    with raw(tmp_path, "auto") as client:
        answer = client.answer(client.call("execute_code", code="6 * 7"))
        assert answer["result"]["content"][0]["text"].endswith(" s · state kept]\n42")


def test_a_client_that_leaves_before_any_call_leaves_nothing(tmp_path: Path, short_path: Path) -> None:
    private = short_path / "private"
    private.mkdir(mode=0o700)
    command = [sys.executable, "-m", "kernelexec", "mcp", "--isolation", "local"]
    env = environment(TMPDIR=str(private), KERNELEXEC_RUNTIME_DIR=str(private))
    done = subprocess.run(command, cwd=tmp_path, env=env, input=b"", capture_output=True, check=False, timeout=BOUND)
    assert (done.returncode, done.stdout, list(private.iterdir())) == (0, b"", [])


def test_isolation_that_is_not_available_is_reported_before_any_answer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernelexec", "mcp", "--isolation", "container"]
    env = environment(DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    done = subprocess.run(
        command, cwd=tmp_path, env=env, stdin=subprocess.PIPE, capture_output=True, check=False, timeout=BOUND
    )
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"kernelexec: ")
