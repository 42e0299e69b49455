"""The server over HTTP: each agent its own kernels, whatever other agents do, and nothing left when it ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from fastmcp.exceptions import McpError
from httpx2 import TransportError
from mcp.types import INVALID_PARAMS

from kernelexec.mcp.callers import Caller
from tests.conftest import Command
from tests.support.command_line import BOUND, END_STATUS, IMPATIENT, STUBBORN, appears, names, refused
from tests.support.mcp_clients import BOTH_ERAS, output_of, text_of
from tests.support.mcp_server import TOOLS, Server, create_token, serving
from tests.support.pace import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("http")) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server that reads tokens, and their file."""
    directory = tmp_path_factory.mktemp("guarded")
    tokens = directory / "tokens"
    create_token(tokens, "nobody")
    with serving(directory, "--tokens", str(tokens), "--public-url", "https://mcp.example/agents") as server:
        yield server, tokens


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_each_agent_has_a_kernel_of_its_own_under_the_same_name(server: Server, era: str) -> None:
    with server.client(era, x_kernelexec_agent=f"a-{era}") as item, server.client(era, x_kernelexec_agent=f"b-{era}") as other:
        assert "no output" in item.text("execute_code", code="x = 'one'")
        assert "NameError" in other.text("execute_code", code="x")
        assert [row["name"] for row in item.rows("list_sessions", "sessions")] == ["default"]
        spaces = {agent.rows("list_sessions", "sessions")[0]["workspace"] for agent in (item, other)}
        assert len(spaces) == 2
    with server.client("legacy" if era == "auto" else "auto", x_kernelexec_agent=f"a-{era}") as again:
        assert "'one'" in again.text("execute_code", code="x")  # whatever connection, and whatever protocol


def test_an_agent_may_name_itself_in_a_request(server: Server) -> None:
    with server.client() as agent:
        for name, value in (("m1", "1"), ("m2", "2")):
            meta = {"kernelexec/agent": name}
            call = {"code": f"mine = {value}"}
            agent.do("call_tool", "execute_code", call, meta=meta)
        reported = agent.do("call_tool", "execute_code", {"code": "mine"}, meta={"kernelexec/agent": "m1"})
        assert output_of(reported) == "1"


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_a_name_that_is_none_is_refused_whatever_is_asked(server: Server, era: str) -> None:
    with (
        pytest.raises(McpError, match=r"x-kernelexec-agent: 'nnn.* must be an agent name") as caught,
        server.client(era, x_kernelexec_agent="n" * 201) as agent,
    ):
        agent.do("list_prompts")
    assert caught.value.code == INVALID_PARAMS


def test_concurrent_first_calls_make_one_kernel_for_each_agent(server: Server) -> None:
    with server.client(x_kernelexec_agent="many-1") as item, server.client(x_kernelexec_agent="many-2") as other:
        asked = [agent.start("execute_code", code="import os; os.getpid()") for _ in range(20) for agent in (item, other)]
        pids = [output_of(call.result(BOUND)) for call in asked]
        assert len(set(pids[::2])) == len(set(pids[1::2])) == 1
        assert set(pids[::2]) != set(pids[1::2])


def test_an_old_clients_connection_is_an_agent(server: Server) -> None:
    with server.client("legacy") as item, server.client("legacy") as other:
        item.text("execute_code", code="x = 1")
        assert item.text("execute_code", code="x") == "1"
        answer = other.text("execute_code", code="x")
        assert "NameError" in answer
        assert "state new" in answer.splitlines()[0]
        assert "and has neither variables nor files of an earlier one." in answer
        handle = other.call("create_session").structured_content
        assert handle is not None
        assert other.text("execute_code", code="2", session=handle["session"]) == "2"


def test_an_unknown_client_learns_to_create_a_handle(server: Server) -> None:
    with server.client() as agent:
        assert "Call create_session" in agent.text("execute_code", code="1")
        assert agent.call("execute_command", command="true").structured_content["exit_code"] == -1  # type: ignore[index]
        assert agent.rows("list_sessions", "sessions") == []
        built = agent.call("create_session").structured_content
    assert built is not None
    with server.client() as again:
        handle = built["session"]
        assert "ZeroDivisionError" in again.text("execute_code", code="x = 41; 1 / 0", session=handle)
        begun = again.call("execute_code", code="import time; time.sleep(1); x + 1", session=handle, wait=0)
        execution = begun.meta["kernelexec/result"]["execution_id"]  # type: ignore[index]
        assert "None of your open sessions has" in again.text("wait_execution", execution_id=execution)
        assert "42" in again.text("wait_execution", execution_id=execution, session=handle)
        again.text("close_session", session=handle)
        assert "No session" in again.text("execute_code", code="1", session=handle)


def test_a_strangers_handle_is_as_good_as_none_for_every_tool(guarded: tuple[Server, Path]) -> None:
    server, tokens = guarded
    alice, bob = (create_token(tokens, name) for name in ("alice", "bob"))
    with server.client(authorization=f"Bearer {alice}") as agent:
        handle = agent.call("create_session").structured_content["session"]  # type: ignore[index]
        agent.text("execute_code", code="secret = 1", session=handle)
        known = {tool["name"] for tool in [actual.model_dump() for actual in agent.do("list_tools")]}
        assert known == {*TOOLS, "create_session", "list_sessions"}
    invented = "ks-" + "0" * 32
    with server.client(authorization=f"Bearer {bob}") as agent:
        for tool, arguments in TOOLS.items():
            asked = [agent.call(tool, **arguments, session=session) for session in (handle, invented)]
            reported = [(call.is_error, text_of(call).replace(handle, invented)) for call in asked]
            assert reported[0] == reported[1], tool
            assert "is open" in reported[0][1], tool
    with server.client(authorization=f"Bearer {alice}") as agent:
        assert agent.text("execute_code", code="secret", session=handle).splitlines()[0] == "1"


def test_tokens_say_which_user_it_is_and_what_is_allowed(
    guarded: tuple[Server, Path], tmp_path: Path, in_process: Command
) -> None:
    server, tokens = guarded
    carol, reader = create_token(tokens, "carol"), create_token(tokens, "carol", "read")
    created = in_process(tmp_path, "mcp-token", "dave", "--tokens", str(tokens))
    assert created.returncode == 0, created.stderr
    dave = created.stdout.strip()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {carol}"}):
        status, _ = server.ask("POST", "/mcp", b"{}", **headers)
        assert status == 401
    assert server.ask("GET", "/healthz")[0] == 200
    with server.client(authorization=f"Bearer {carol}") as agent:
        agent.text("execute_code", code="x = 1")
    with server.client(authorization=f"Bearer {reader}") as agent:
        assert [row["name"] for row in agent.rows("list_variables", "variables")] == ["x"]
        for tool in ("execute_code", "write_file", "close_session", "create_session"):
            assert "needs a token with the scope execute" in agent.text(tool, **TOOLS.get(tool, {}))
        unknown = agent.text("run_shell_command_now")
        assert unknown.startswith("There is no tool 'run_shell_command_now'. The tools are: wait_execution, read_output, ")
        assert "execute_code" not in unknown
        assert "did you mean" not in agent.text("run_python")
        assert "(did you mean 'read_file'?)" in agent.text("cat")
        shown = agent.do("list_tools")
        assert {"read_file", "list_variables"} < {tool.name for tool in shown}
        assert all(tool.annotations.read_only_hint for tool in shown)
        assert agent.do("list_prompts") == []
    with server.client(authorization=f"Bearer {dave}") as agent:
        assert agent.rows("list_sessions", "sessions") == []


def test_the_public_address_of_a_server_is_one_of_its_names(guarded: tuple[Server, Path]) -> None:
    server, tokens = guarded
    token = create_token(tokens, "erin")
    for host, expected in (("mcp.example", 400), ("mcp.example:443", 400), ("other.example", 403)):  # 400: no request of MCP
        assert server.ask("POST", "/mcp", b"{}", authorization=f"Bearer {token}", host=host)[0] == expected


@pytest.mark.parametrize(
    ("end", "era"), [(signal.SIGTERM, "auto"), pytest.param(signal.SIGINT, "legacy", marks=pytest.mark.nightly)]
)
def test_everything_ends_also_while_a_cell_runs(tmp_path: Path, short_path: Path, end: signal.Signals, era: str) -> None:
    private = short_path / "private"
    private.mkdir(mode=0o700)
    with serving(tmp_path, *IMPATIENT, TMPDIR=str(private), KERNELEXEC_RUNTIME_DIR=str(private)) as server:
        family: list[psutil.Process] = []
        with (
            suppress(TransportError),
            server.client(era, x_kernelexec_agent="a") as agent,
        ):  # it hears of the end in its own way
            agent.start("execute_code", code=STUBBORN)
            workspace = tmp_path / "workspaces" / Caller(agent="name a", title="a").resolve_session("default")
            appears(server.process, workspace / "begun")  # type: ignore[arg-type]
            family = psutil.Process(server.process.pid).children(recursive=True)
            server.process.send_signal(end)
            status = server.process.wait(BOUND)
        assert status == END_STATUS[end]
        gone, left = psutil.wait_procs(family, timeout=BOUND)
        assert (left, len(gone)) == ([], len(family))
        assert len(family) >= 2
    assert "Traceback" not in (tmp_path / "stderr.txt").read_text()
    until(lambda: names(private) == [])


@pytest.mark.parametrize("era", BOTH_ERAS)
def test_a_client_that_goes_away_or_gives_up_leaves_the_kernel_in_step(server: Server, era: str) -> None:
    name = f"leaver-{era}"
    with server.client(era, x_kernelexec_agent=name) as agent:
        agent.text("execute_code", code="x = 1")
        code = "import time\nopen('begun', 'w').close()\ntime.sleep(600)"
        call = agent.start("execute_code", code=code, timeout=700, wait=600)
        directory = Path(agent.rows("list_sessions", "sessions")[0]["workspace"]) / "begun"
        appears(server.process, directory)  # type: ignore[arg-type]
        call.cancel()
        assert agent.text("execute_code", code="x").splitlines()[0] == "1"  # the cell was interrupted: it would run on


def test_a_unix_socket_is_this_users_alone(tmp_path: Path, short_path: Path) -> None:
    path = short_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(str(path))  # what a killed server has left is no obstacle
    with serving(tmp_path, "--socket", str(path)) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.connect(str(path))
            asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asking.recv(100).startswith(b"HTTP/1.1 200")
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(BOUND)
    assert not path.exists()


def test_a_server_that_ends_leaves_the_socket_of_its_successor(tmp_path: Path, short_path: Path) -> None:
    path = short_path / "s"
    with serving(tmp_path, "--socket", str(path)) as server, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
        path.unlink()
        successor.bind(str(path))
        successor.listen()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(BOUND)
        assert path.is_socket()


def test_invalid_options_of_the_http_server_are_refused_in_one_line(
    tmp_path: Path, server: Server, in_process: Command
) -> None:
    taken = server.url.split(":")[2].split("/")[0]
    for args, reason in (
        (("--http", "--host", "0.0.0.0"), "--tokens"),  # noqa: S104 - that is refused
        (("--port", "9000"), "use --http too"),
        (("--http", "--port", "99999"), "port=99999"),
        (("--http", "--port", taken), "cannot listen there"),
        (("--http", "--tokens", "none"), "cannot be read"),
    ):
        assert reason in refused(in_process(tmp_path, "mcp", "--isolation", "local", *args)), args
