"""The service of the guide under uvicorn: its loop is uvloop or asyncio's own, requests run at once, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_readme import PYTHON
from tests.support.command_line import BOUND, environment
from tests.support.night import at_night
from tests.support.pace import until

LOOP = """
@app.get("/loop")
async def loop() -> str:
    import asyncio
    return type(asyncio.get_running_loop()).__module__
"""


class Service:
    """One process of uvicorn with the service."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self._address = address

    def request(self, method: str, path: str, **body: Any) -> Any:
        """Return the answer to a request; of a failed one its status."""
        with closing(HTTPConnection(self._address, timeout=BOUND)) as connection:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return json.load(answer) if answer.status == HTTPStatus.OK else answer.status

    def execute(self, name: str, code: str, **options: Any) -> Any:
        return self.request("POST", f"/sessions/{name}/cells", code=code, **options)


@pytest.fixture(params=["auto", *at_night("uvloop", "asyncio")])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    [code] = [block for block in PYTHON if "FastAPI(" in block]
    (tmp_path / "service.py").write_text(code + LOOP)
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", "0", "--loop", request.param]
    options: Any = {"cwd": tmp_path, "env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **options, text=True) as process:
        try:
            assert process.stdout is not None
            addresses = (re.search(r"running on http://([\d.:]+)", line) for line in process.stdout)
            address = next(match[1] for match in addresses if match)
            yield Service(process, address)
        finally:
            process.kill()


def test_a_service_runs_cells_at_once_and_ends_with_all_kernels(service: Service, request: pytest.FixtureRequest) -> None:
    expected = "uvloop" if "asyncio" not in request.node.name else "asyncio.unix_events"
    assert service.request("GET", "/loop").split(".")[0] == expected.split(".", maxsplit=1)[0]
    assert service.execute("a", "import os; x = 41; print(x + 1)")["text"] == "42\n"
    kernels = [int(service.execute(name, "import os; os.getpid()")["text"]) for name in ("a", "b")]
    places = [Path(service.execute(name, "print(os.getcwd())")["text"].strip()) for name in ("a", "b")]
    waits = "import time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('ended')"
    with ThreadPoolExecutor() as threads:
        answers = threads.map(lambda name: service.execute(name, waits), ("a", "b"))
        until(lambda: all((directory / "begun").exists() for directory in places))
        for directory in places:
            (directory / "go").touch()
        assert [answer["text"] for answer in answers] == ["ended\n", "ended\n"]
    late = service.execute("a", "time.sleep(600)", timeout=0.5)
    assert (late["exit_code"], late["state"]) == (124, "kept")
    assert late["model"].startswith("[error · exit code 124 · ended by timeout")
    assert late["verdict"] == "[kernelexec: error · timeout · state kept]"
    assert service.execute("a", "x")["text"] == "41"
    assert service.execute("a", "") == HTTPStatus.UNPROCESSABLE_ENTITY
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(BOUND)
    until(lambda: not any(map(is_alive, kernels)))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
