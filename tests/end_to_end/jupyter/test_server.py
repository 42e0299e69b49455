"""Our kernels in a real Jupyter server: its REST interface and websockets, and what is left however it ends."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from kernelexec.provisioning.jupyter import install_spec
from tests.support.engine import needs_engine
from tests.support.jupyter_directories import BOUND, SPECS, comes_true, containers, jupyter_place, kernel_of, text_of
from tests.support.pace import until
from tests.support.remains import marked_processes, runtime_directories

pytestmark = [needs_engine, pytest.mark.nightly]


class Server:
    """A Jupyter server in a process of its own, on a loopback port that it chooses."""

    def __init__(self, directory: Path, notebooks: Path) -> None:
        self._token = secrets.token_hex(16)
        options = {"ip": "127.0.0.1", "port": "0", "port_retries": "0", "open_browser": "False", "allow_root": "True"}
        options |= {"root_dir": str(notebooks)}
        words = [f"--ServerApp.{name}={value}" for name, value in options.items()]
        env = os.environ | {"JUPYTER_TOKEN": self._token}
        with (directory / "server.log").open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "jupyter_server", *words], env=env, stdout=log, stderr=log)
        self._runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{self.process.pid}.json"
        assert comes_true(self._serves), (directory / "server.log").read_text()

    def _serves(self) -> bool:
        try:
            self._port = json.loads(self._runtime.read_text())["port"]
            return bool(self.ask("GET", "api/status"))
        except (OSError, ValueError):
            return False

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer's status and what it says."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"token {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=BOUND) as answer:  # noqa: S310 - of this machine
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, json.loads(exc.read() or "null")

    def run(self, kernel: str, code: str) -> str:
        """What a cell prints, through a websocket."""
        url = f"ws://127.0.0.1:{self._port}/api/kernels/{kernel}/channels?token={self._token}"
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3", "username": "", "session": "s"}
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        socket = websocket.create_connection(url, timeout=BOUND)
        text: list[str] = []
        try:
            socket.send(json.dumps(message))
            while True:
                output = json.loads(socket.recv())
                if output["parent_header"].get("msg_id") != header["msg_id"]:
                    continue
                text.append(output["content"].get("text", ""))
                if output["content"].get("execution_state") == "idle":
                    return "".join(text)
        finally:
            socket.close()

    def kernel(self, name: str) -> str:
        status, output = self.ask("POST", "api/kernels", {"name": name, "path": "book.ipynb"})
        assert status == 201, output
        return str(output["id"])

    def end(self, signum: int) -> None:
        self.process.send_signal(signum)
        self.process.wait(BOUND)


@pytest.fixture(scope="module", autouse=True)
def directory(own_remains: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with jupyter_place(tmp_path_factory.mktemp("jupyter")) as directory:
        yield directory


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


@pytest.fixture
def start(directory: Path, notebooks: Path) -> Iterator[Callable[[], Server]]:
    servers = []

    def start() -> Server:
        servers.append(Server(directory, notebooks))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.end(signal.SIGTERM)


def nothing_is_left() -> bool:
    return (containers(), runtime_directories(), marked_processes()) == ([], set(), {})


@pytest.mark.parametrize("name", SPECS.values(), ids=SPECS)
def test_a_server_starts_runs_restarts_and_ends_kernels(name: str, start: Callable[[], Server], notebooks: Path) -> None:
    server = start()
    kernel, other = server.kernel(name), server.kernel(name)
    assert server.run(kernel, "x = 40\nimport os; print(x + 2, os.getcwd())") == f"42 {notebooks}\n"
    assert server.run(other, "print('x' in globals())") == "False\n"
    assert server.ask("POST", f"api/kernels/{kernel}/restart")[0] == 200
    assert server.run(kernel, "print('x' in globals())") == "False\n"
    assert server.ask("DELETE", f"api/kernels/{kernel}") == (204, None)
    assert server.run(other, "print(1)") == "1\n"
    assert server.ask("DELETE", f"api/kernels/{other}") == (204, None)
    until(nothing_is_left)


def test_the_answer_says_why_a_kernel_did_not_start(start: Callable[[], Server], directory: Path) -> None:
    install_spec("broken", "Broken", container={"image": "kernelexec/none-such"}, prefix=directory)
    server = start()
    for path, body in {"kernels": {"name": "broken"}, "sessions": _session("broken")}.items():
        status, output = server.ask("POST", f"api/{path}", body)
        assert status == 500
        assert "The image kernelexec/none-such is not here." in output["message"]
    assert server.ask("GET", "api/kernels") == (200, [])


def _session(kernel: str) -> dict[str, object]:
    return {"kernel": {"name": kernel}, "name": "n", "path": "n.ipynb", "type": "notebook"}


@pytest.mark.parametrize("name", SPECS.values(), ids=SPECS)
def test_a_terminated_server_leaves_nothing(name: str, start: Callable[[], Server]) -> None:
    server = start()
    server.run(server.kernel(name), "x = 1")
    server.end(signal.SIGTERM)
    until(nothing_is_left)


@pytest.mark.parametrize("name", SPECS.values(), ids=SPECS)
def test_the_kernel_of_a_killed_server_ends_by_itself_and_the_next_start_removes_the_rest(
    name: str, start: Callable[[], Server], notebooks: Path
) -> None:
    server = start()
    server.run(server.kernel(name), "import subprocess; subprocess.Popen(['sleep', '1000'])")
    [left] = runtime_directories()
    server.end(signal.SIGKILL)
    assert comes_true(lambda: not marked_processes() and not any(seen.running for seen in containers()))
    with kernel_of(name, notebooks) as (_, client):
        assert text_of(client, "print(1)") == "1\n"
        assert not left.exists()
        assert len(containers()) == (name == SPECS["container"])
    until(nothing_is_left)
