"""Packages from an index: the installer has a network that cells lack, sees nothing of theirs, and only while it works."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor
from kernelexec.docker.client import Engine, map_docker_errors
from tests.conftest import KINDS
from tests.support.engine import needs_bubblewrap, needs_engine
from tests.support.virtual_environments import made_source, made_wheel

OFFLINE: dict[str, dict[str, Any]] = {
    "local": {"confinement": {"network": False}},
    "bubblewrap": {},
    "container": KINDS["container"],
}
MARKS = {"bubblewrap": needs_bubblewrap, "container": needs_engine}
EVERY = [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in OFFLINE]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def index(kind: str, location: Path) -> Iterator[dict[str, str]]:
    """Serve a directory of packages' directories, and give the variables by which pip finds it."""
    address = "127.0.0.1"
    if kind == "container":
        with Engine.acquire() as engine, map_docker_errors("describe its network"):
            answer = engine.api.inspect_network("bridge")["IPAM"]["Config"][0]
            address = answer.get("Gateway") or str(ipaddress.ip_network(answer["Subnet"])[1])
    with ThreadingHTTPServer((address, 0), partial(_Quiet, directory=str(location))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield {"PIP_INDEX_URL": f"http://{address}:{server.server_port}/", "PIP_TRUSTED_HOST": address}
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("kind", EVERY)
def test_a_network_for_an_installation_is_for_fetching_only(kind: str, tmp_path: Path) -> None:
    made_wheel(tmp_path / "index" / "lower", "lower", "1.0")
    workspaces = tmp_path / "workspaces"
    seeing = f"open({str(workspaces / 'fetching' / 'secret')!r}).read()"
    reached = "urllib.request.urlopen(__import__('os').environ['PIP_INDEX_URL'], timeout=10).status"
    made_source(tmp_path / "index" / "built", "built", f"{reached} == 200 and {seeing}")
    with index(kind, tmp_path / "index") as variables:
        config = {**OFFLINE[kind], "environment": {"set": variables}}
        with Executor(kind, workspace=workspaces, config=config) as executor:
            session = executor.session("fetching")
            (session.workspace / "secret").write_text("its own")
            done = session.install(["lower", "built"], network="bridge" if kind == "container" else True)
            assert done.ok, done.output
            actual = session.execute("import built, lower; print(lower.version, built.seen)").stdout
            assert actual in ("1.0 PermissionError\n", "1.0 FileNotFoundError\n")  # and not that the index is out of reach
            still = session.execute(
                "import urllib.request, os; urllib.request.urlopen(os.environ['PIP_INDEX_URL'], timeout=10)"
            )
            assert still.status == "error"


def test_kernels_with_a_network_install_by_it(tmp_path: Path) -> None:
    made_wheel(tmp_path / "index" / "lower", "lower", "1.0")
    with index("local", tmp_path / "index") as variables:
        config = {"environment": {"set": variables}}
        with Executor("local", workspace=tmp_path / "workspaces", config=config) as executor:
            session = executor.session()
            assert session.install("lower").ok
            assert session.execute("import lower; print(lower.version)").stdout == "1.0\n"
            done = session.install("missing")
            assert not done.ok
            assert "No matching distribution found for missing" in done.output


@pytest.mark.nightly
@pytest.mark.parametrize("kind", EVERY)
def test_packages_missing_in_an_index_are_a_result(kind: str, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    with index(kind, tmp_path / "index") as variables:
        config = {**OFFLINE[kind], "environment": {"set": variables}}
        with Executor(kind, workspace=tmp_path / "workspaces", config=config) as executor:
            session = executor.session()
            session.execute("x = 1")
            done = session.install("missing", network=True)
            assert not done.ok
            assert "No matching distribution found for missing" in done.output
            assert session.execute("x").text == "1"
