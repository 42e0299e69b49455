"""The server in a container, started as its compose file says, for a client that comes by the published port."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
import tomllib
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastmcp.client.transports import StreamableHttpTransport

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.build import BuildOrder, build_image, built_images
from kernelexec.docker.images.recipes import recipe
from kernelexec.docker.labels import WORKSPACE
from kernelexec.errors import EngineFailed
from kernelexec.mcp.authentication import add_token
from tests.support.command_line import BOUND
from tests.support.engine import BASE, MINIMAL, containers, needs_engine, own_authorities
from tests.support.mcp_clients import Agent, connected, output_of, record_of, text_of
from tests.support.pace import until
from tests.support.paths import ROOT

COMPOSE = ROOT / "images/server/compose.yaml"
DOCKERFILE = ROOT / "images/Dockerfile.server"
USER = os.getuid() or 43210
_NANO = 10**9
#: The first test builds the image where it is of another state of the package.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def services() -> dict[str, Any]:
    """The compose file's services, variables replaced by what is used where they are not set."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text(encoding="utf-8"))
    actual = yaml.safe_load(text)
    services: dict[str, Any] = actual["services"]
    return services


def nanoseconds(message: str) -> int:
    return int(message.removesuffix("s")) * _NANO


def as_started(service: dict[str, Any], volume: str, tokens: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What compose would have the engine make of a service: a container's settings, and its host's; at a free port."""
    known = {"image", "user", "ports", "volumes", "secrets", "init", "read_only", "cap_drop", "security_opt", "tmpfs"}
    known |= {"mem_limit", "pids_limit", "stop_grace_period", "restart", "healthcheck"}
    assert set(service) == known
    address, _, inside = service["ports"][0].split(":")
    check = service["healthcheck"]
    times = {name: nanoseconds(check[name]) for name in ("interval", "timeout", "start_period")}
    settings = {
        "image": service["image"],
        "user": f"{USER}:{USER}",
        "ports": [int(inside)],
        "stop_signal": "SIGTERM",
        "healthcheck": {"test": check["test"], "retries": check["retries"], **times, "interval": _NANO},
    }
    directory = service["volumes"][0].partition(":")[2]
    path, _, options = service["tmpfs"][0].partition(":")
    host = {
        "port_bindings": {int(inside): (address, None)},
        "binds": [f"{volume}:{directory}", f"{tokens}:/run/secrets/{service['secrets'][0]}:ro"],
        "init": service["init"],
        "read_only": service["read_only"],
        "cap_drop": service["cap_drop"],
        "security_opt": [each.replace(":true", "") for each in service["security_opt"]],
        "tmpfs": {path: options},
        "mem_limit": service["mem_limit"],
        "pids_limit": service["pids_limit"],
    }
    return settings, host


@dataclass(frozen=True, slots=True)
class Served:
    """A server in a container."""

    engine: Engine
    container: str
    token: str

    @property
    def about(self) -> dict[str, Any]:
        actual: dict[str, Any] = self.engine.api.inspect_container(self.container)
        return actual

    @property
    def url(self) -> str:
        published = self.about["NetworkSettings"]["Ports"]["8000/tcp"]
        assert [each["HostIp"] for each in published] == ["127.0.0.1"]
        return f"http://127.0.0.1:{published[0]['HostPort']}/mcp"

    def healthy(self) -> None:
        end = time.monotonic() + BOUND
        while (state := self.about["State"])["Health"]["Status"] != "healthy":
            assert state["Running"], self.engine.logs(self.container)
            assert time.monotonic() < end, state
            time.sleep(0.1)  # the engine asks once a second

    def transport(self, token: str) -> StreamableHttpTransport:
        return StreamableHttpTransport(self.url, headers={"authorization": f"Bearer {token}"})


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as opened:
        yield opened


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    """The server's image, of this very state of the package: built where it is of another one."""
    created = recipe("server")
    if not any(actual.current and created.tag in actual.names for actual in built_images(engine)):
        build_image(engine, BuildOrder(created, own_authorities(), base_image=BASE))
    return created.tag


@contextmanager
def started(engine: Engine, image: str, tokens: Path) -> Iterator[Served]:
    """One server, with a workspace of its own, that alice has a token for."""
    token = add_token(tokens, "alice", ("execute",))
    if os.getuid() != USER:
        os.chown(tokens, USER, USER)
    volume, container = f"kernelexec-test-{uuid.uuid4().hex[:12]}", ""
    settings, host = as_started(services()["server"], volume, tokens)
    assert settings["image"] == image
    try:
        container = engine.create(None, settings, host)
        engine.start(container)
        served = Served(engine, container, token)
        served.healthy()
        yield served
    finally:
        if container:
            engine.remove(container)
        with suppress(EngineFailed), map_docker_errors("remove a volume"):
            engine.api.remove_volume(volume)


@pytest.fixture(scope="module")
def served(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with started(engine, image, tmp_path_factory.mktemp("secret") / "tokens") as served:
        yield served


@pytest.fixture
def agent(served: Served) -> Iterator[Agent]:
    with connected(served.transport(served.token), "auto") as agent:
        yield agent


@needs_engine
def test_a_client_runs_cells_in_one_kernel_by_the_published_port(agent: Agent) -> None:
    agent.text("execute_code", code="x = 1")
    again = agent.call("execute_code", code="x")
    assert output_of(again) == "1"
    record = record_of(again)
    assert (record["isolation"], record["state"]) == ("container-host", "kept")


@needs_engine
def test_results_say_what_confines_a_kernel_in_there(agent: Agent) -> None:
    record = record_of(agent.call("execute_code", code="open('/run/secrets/tokens', 'a')"))
    assert record["status"] == "error"
    assert "no-new-privileges" in record["confinement"]


@needs_engine
def test_kernels_are_an_ordinary_users_without_capabilities_and_the_root_is_read_only(agent: Agent) -> None:
    look = "import os; print(os.getuid(), open('/proc/self/status').read().split('CapBnd:')[1].split()[0])"
    assert agent.text("execute_code", code=look).splitlines()[0] == f"{USER} {'0' * 16}"
    assert "Error" in agent.text("execute_code", code="open('/opt/venv/written', 'w')")


@needs_engine
def test_kernels_in_there_have_the_data_stack(agent: Agent) -> None:
    code = (
        "import pandas, scipy, sklearn, seaborn\nimport matplotlib.pyplot as plt; plt.plot([1, 2])\n"
        "pandas.DataFrame({'a': [42]}).a.sum().item()"
    )
    answer = agent.call("execute_code", code=code, timeout=BOUND, wait=BOUND)
    assert text_of(answer).splitlines()[-1] == "42"
    assert [block.type for block in answer.content].count("image") == 1


@contextmanager
def started_beside(engine: Engine, home: Path, tokens: Path) -> Iterator[Served]:
    """A server of the profile ``siblings``, whose kernels are containers beside it."""
    service = services()["siblings"]
    published = service["ports"][0].split(":")
    command = [word.replace("/srv/kernelexec", str(home)) for word in service["command"]]
    settings = {
        "image": service["image"],
        "user": f"{USER}:{USER}",
        "command": [*command, "--image", MINIMAL],
        "environment": {"XDG_RUNTIME_DIR": str(home)},
        "ports": [int(published[2])],
        "stop_signal": "SIGTERM",
        "healthcheck": {"test": service["healthcheck"]["test"], "retries": 3, "interval": _NANO},
    }
    socket = "/var/run/docker.sock"
    host = {
        "port_bindings": {int(published[2]): (published[0], None)},
        "binds": [f"{socket}:{socket}", f"{home}:{home}", f"{tokens}:/run/secrets/tokens:ro"],
        "group_add": [str(Path(socket).stat().st_gid)],
        "init": service["init"],
        "cap_drop": service["cap_drop"],
    }
    container = engine.create(None, settings, host)
    try:
        engine.start(container)
        served = Served(engine, container, tokens.with_suffix(".plain").read_text())
        served.healthy()
        yield served
    finally:
        engine.remove(container)


@needs_engine
def test_a_restart_of_the_server_beside_its_kernels_loses_nothing(
    engine: Engine, image: str, short_path: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.with_suffix(".plain").write_text(add_token(tokens, "alice", ("execute",)))
    if os.getuid() != USER:
        os.chown(tokens, USER, USER)
        os.chown(short_path, USER, USER)
    code = "import time\nfor n in range(100):\n    print(f'n={n}', flush=True)\n    time.sleep(0.1)\nx += 1\nx"
    with started_beside(engine, short_path, tokens) as old:
        with connected(old.transport(old.token), "auto") as agent:
            first = agent.call("execute_code", code="x = 41")
            assert not first.is_error, text_of(first)
            begun = record_of(agent.call("execute_code", code=code, wait=0.5, timeout=700))
            assert begun["status"] == "running"
        engine.signal(old.container, signal.SIGTERM)
        assert engine.api.wait(old.container, timeout=BOUND)["StatusCode"] == 0
    with started_beside(engine, short_path, tokens) as served, connected(served.transport(served.token), "auto") as agent:
        ended = agent.call("wait_execution", execution_id=begun["execution_id"])
        assert re.findall(r"n=(\d+)\n", text_of(ended)) == [str(n) for n in range(100)]
        assert record_of(ended)["status"] == "ok"
        assert agent.text("execute_code", code="x").strip() == "42"
        agent.text("close_session", session="default")
    until(lambda: engine.list_containers(f"{WORKSPACE}={short_path}/workspaces") == [])


@needs_engine
def test_no_request_is_served_without_a_token(served: Served) -> None:
    host = served.url.split("/")[2]
    for path, headers, status in (("/mcp", {}, 401), ("/mcp", {"authorization": "Bearer no"}, 401), ("/readyz", {}, 200)):
        connection = HTTPConnection(host, timeout=BOUND)
        connection.request("POST" if status == 401 else "GET", path, headers=headers)
        assert connection.getresponse().status == status
        connection.close()


@needs_engine
def test_sigterm_ends_the_server_during_a_cell_and_leaves_nothing(engine: Engine, image: str, tmp_path: Path) -> None:
    with started(engine, image, tmp_path / "tokens") as served:
        with connected(served.transport(served.token), "auto") as agent:
            assert "running" in agent.text("execute_code", code="import time; time.sleep(600)", timeout=700, wait=0)
        volumes = {each["Name"] for each in served.about["Mounts"] if each["Type"] == "volume"}
        assert volumes
        engine.signal(served.container, signal.SIGTERM)
        assert engine.api.wait(served.container, timeout=BOUND)["StatusCode"] == 0
        assert "Traceback" not in engine.logs(served.container)
    assert served.container not in {each["Id"] for each in containers(engine)}
    assert not volumes & {each["Name"] for each in engine.api.volumes()["Volumes"] or ()}


def test_the_compose_file_lets_in_this_machine_only_and_gives_away_nothing() -> None:
    service = services()["server"]
    assert [port.startswith("127.0.0.1:") for port in service["ports"]] == [True]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is service["init"] is True
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert service["user"] == "1000:1000"
    assert not [volume for volume in service["volumes"] if volume.startswith(("/", "."))]
    assert nanoseconds(service["stop_grace_period"]) > 5 * _NANO


def test_kernels_beside_the_server_are_chosen_by_a_profile_and_have_the_same_paths_on_both_sides() -> None:
    service = services()["siblings"]
    assert service["profiles"] == ["siblings"]
    engine, home = service["volumes"]
    assert engine == "/var/run/docker.sock:/var/run/docker.sock"
    inside, _, outside = home.partition(":")
    assert inside == outside == service["environment"]["XDG_RUNTIME_DIR"]
    assert service["command"][:2] == ["--isolation", "container"]
    assert service["command"][-1].startswith(f"{inside}/")


def test_the_compose_file_and_the_image_ask_for_health_in_the_same_way() -> None:
    actual = re.search(r"^HEALTHCHECK .*\\\n\s+CMD (\[.*\])$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert actual
    for service in services().values():
        assert service["healthcheck"]["test"] == ["CMD", *json.loads(actual[1])]


def test_the_image_installs_what_the_package_asks_for_and_the_data_stack() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["metrics"]]
    names = {re.split(r"[<>=]", line)[0].lower().replace("_", "-") for line in wanted}
    directory = ROOT / "images/requirements"
    server, data = (
        (directory / name).read_text(encoding="utf-8").splitlines()[1:] for name in ("server.txt", "data-science.txt")
    )
    assert server == sorted(names | set(data))


def test_the_package_that_goes_into_the_image_is_the_same_for_the_same_files() -> None:
    files, again = recipe("server").files, recipe("server").files
    [name] = [name for name in files if name.startswith("package/")]
    assert files[name] == again[name]
    with zipfile.ZipFile(io.BytesIO(files[name])) as wheel:  # type: ignore[arg-type]
        assert wheel.testzip() is None
        names = set(wheel.namelist())
        [record] = [name for name in names if name.endswith("/RECORD")]
        assert {line.split(",")[0] for line in wheel.read(record).decode().splitlines()} == names
    assert {"kernelexec/__init__.py", "kernelexec/py.typed", "kernelexec/images/server/compose.yaml"} <= names
    assert not [name for name in names if "__pycache__" in name]
