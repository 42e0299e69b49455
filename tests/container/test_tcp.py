"""Containers that are reached by ports: the clients that can reach them, their own reach, and the remains."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from docker.errors import NotFound
from jupyter_client.kernelspec import KernelSpec

from kernelexec import Executor, InvalidConfig, KernelStartFailed, MemoryHigh, Session
from kernelexec.config import load
from kernelexec.docker import networks
from kernelexec.docker.client import ContainerStatus, Engine, ListedContainer
from kernelexec.docker.create_options import NETWORK, Order
from kernelexec.docker.labels import SESSION, WORKSPACE
from kernelexec.errors import EngineRefused
from kernelexec.events import Event, KernelChanged
from kernelexec.kernel.wire.zmtp import GREETING
from kernelexec.provisioning.jupyter import ManagedKernelDirectory
from tests.conftest import OVER_TCP
from tests.local.kernel.test_curve_kernels import STRANGERS
from tests.support.engine import BASE, IMAGE, MINIMAL, needs_engine
from tests.support.language_image import language_image, static_image
from tests.support.low_memory import MIB
from tests.support.pace import BOUND, slow, until

pytestmark = [needs_engine, pytest.mark.nightly]

OPTIONS = OVER_TCP["container over tcp"]
TRY = """
import socket
def tried(place, port):
    try:
        socket.create_connection((place, port), timeout=1).close()
    except OSError:
        return False
    return True
"""


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with Executor("container", workspace=tmp_path_factory.mktemp("workspaces"), config=OPTIONS) as opened:
        yield opened


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A service of this machine, at all its addresses."""
    with socket.create_server(("0.0.0.0", 0)) as server:  # noqa: S104 - so that it is at the bridge's too
        yield server


def containers(label: str) -> list[ListedContainer]:
    with Engine() as engine:
        return engine.list_containers(label)


def container_of(session: Session) -> ContainerStatus:
    with Engine() as engine:
        named = engine.list_containers(f"{SESSION}={session.name}")
        (actual,) = [entry for entry in named if entry.labels[WORKSPACE] == str(session.workspace.parent)]
        return engine.inspect_container(actual.id)


def addresses() -> set[str]:
    """This machine's own, of IPv4."""
    actual = (address for places in psutil.net_if_addrs().values() for address in places)
    return {address.address for address in actual if address.family == socket.AF_INET}


def bridge_of(session: Session) -> str:
    """The address at which the engine's machine is in the network of a session's kernel."""
    session.execute("1")
    with Engine() as engine:
        return str(engine.api.inspect_network(NETWORK)["IPAM"]["Config"][0]["Gateway"])


def address_of(session: Session) -> str:
    return session.execute("import socket; print(socket.gethostbyname(socket.gethostname()))").stdout.strip()


def reached(session: Session, directory: str, port: int) -> bool:
    return session.execute(f"{TRY}\ntried({directory!r}, {port})").text == "True"


def test_its_ports_are_open_at_one_address_of_this_machine(session: Session) -> None:
    ports = set(container_of(session).ports.values())
    assert len(ports) == 5
    listens = [actual.laddr for actual in psutil.net_connections("tcp") if actual.status == psutil.CONN_LISTEN]
    assert {directory.ip for directory in listens if directory.port in ports} == {"127.0.0.1"}
    for address in addresses() - {"127.0.0.1"}:
        for port in ports:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), timeout=BOUND)


@pytest.mark.parametrize("hello", STRANGERS.values(), ids=STRANGERS)
def test_a_client_without_the_keys_is_refused(session: Session, hello: bytes) -> None:
    session.execute("x = 1")
    for port in container_of(session).ports.values():
        with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as stranger:
            stranger.sendall(hello)
            heard = b""
            try:
                while chunk := stranger.recv(1000):
                    heard += chunk
            except ConnectionResetError:
                pass
            assert len(heard) <= len(GREETING)
    assert session.execute("x").text == "1"


def test_the_result_says_once_that_there_is_a_network(executor: Executor) -> None:
    session = executor.session("told")
    (note,) = session.execute("1").notes
    assert note.startswith("The network is not 'none': kernels of this engine are reached by ports")
    assert session.execute("1").notes == ()
    session.close()


def test_a_user_learns_which_network_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kernelexec.notices._printed_notices", set())
    with Executor("container", workspace=tmp_path, config=OPTIONS) as executor:
        executor.session("a")
    assert f"containers of {IMAGE}, network: kernelexec, with 5 ports open on 127.0.0.1.\n" in capsys.readouterr().err


def test_hooks_learn_where_it_is_reached(tmp_path: Path) -> None:
    reported: list[Event] = []
    with Executor("container", workspace=tmp_path, config=OPTIONS, hooks=[reported.append]) as executor:
        ports = container_of(executor.session("a")).ports
    (where,) = [event.container for event in reported if isinstance(event, KernelChanged) and event.container]
    assert (where.network, where.ports) == ("kernelexec", tuple(sorted(ports.values())))


def test_a_kernel_that_is_not_ours_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    config = {"container": {"image": language_image(IMAGE), "transport": "tcp"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session()
        session.execute("x = 1")
        with pytest.raises(KernelStartFailed, match=r"'polite' cannot be reached: .* by tcp.*Run polite by"):
            session.execute("1", language="polite")
        assert session.execute("x").text == "1"


def test_a_kernel_of_another_program_is_refused(tmp_path: Path) -> None:
    spec = KernelSpec(argv=["python3"], env={})
    receiving = ManagedKernelDirectory(None).prepare(spec, "k", {"cwd": tmp_path}, isolation="container", options=OPTIONS)
    with pytest.raises(InvalidConfig, match=r"container\.transport='tcp': kernels of other programs"):
        asyncio.run(receiving)


def test_memory_that_gets_short_is_reported_before_it_is_over(tmp_path: Path) -> None:
    reported: list[Event] = []
    config = {"container": {**OPTIONS["container"], "memory_bytes": 256 * MIB}}  # type: ignore[dict-item]
    with Executor("container", workspace=tmp_path, config=config, hooks=[reported.append]) as executor:
        session = executor.session("a")
        session.execute("1")
        (note,) = session.execute("big = bytearray(b'x') * 209_715_200").notes
    assert "of 256 MiB in use; biggest: big 200 MiB" in note
    (high,) = [event for event in reported if isinstance(event, MemoryHigh)]
    assert (high.limit_bytes, high.biggest[0].name) == (256 * MIB, "big")


def test_a_kernel_that_runs_out_of_memory_is_distinguished_from_a_killed_one(tmp_path: Path) -> None:
    config = {"container": {**OPTIONS["container"], "memory_bytes": 128 * MIB}}  # type: ignore[dict-item]
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        starved = session.execute("y = bytearray(b'x') * 500_000_000")
        assert (starved.exit_code, starved.state, starved.cause) == (137, "lost", "oom")
        killed = session.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        assert (killed.exit_code, killed.state, killed.cause) == (137, "lost", "killed")


def test_an_image_without_python_gets_one_mounted(tmp_path: Path) -> None:
    config = {"container": {"image": static_image(BASE), "runtime_image": MINIMAL, "transport": "tcp"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        actual = executor.session("a").execute("6 * 7")
    assert (actual.text, actual.kernel_epoch) == ("42", 1)
    python, network = actual.notes
    assert "has no Python: the kernel runs on a Python that is mounted there" in python
    assert network.startswith("The network is not 'none'")


def test_nothing_leads_out_of_the_network(session: Session, listener: socket.socket) -> None:
    port, own = listener.getsockname()[1], bridge_of(session)
    there = [actual for actual in addresses() if not actual.startswith("127.") and actual != own]
    assert [actual for actual in [*there, "192.0.2.1"] if reached(session, actual, port)] == []


def test_no_other_container_of_the_network_is_reached(executor: Executor, session: Session) -> None:
    other = executor.session("other")
    directory = address_of(other)
    assert reached(other, directory, 5701)
    assert not reached(session, directory, 5701)
    other.close()


def test_what_listens_at_all_addresses_of_the_machine_is_reached_as_the_note_says(
    session: Session, listener: socket.socket
) -> None:
    assert reached(session, bridge_of(session), listener.getsockname()[1])


def test_names_are_looked_up_nowhere(session: Session) -> None:
    """The one server that the engine asks for it is one that the container itself would have to be."""
    code = """
import socket, threading
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 53))
    server.settimeout(30)
    def ask():
        try:
            socket.gethostbyname("secret.example.com")
        except OSError as exc:
            print(type(exc).__name__)
    asking = threading.Thread(target=ask)
    asking.start()
    print(b"secret" in server.recv(1000))
    asking.join()
"""
    assert session.execute(code).stdout == "True\ngaierror\n"


def test_a_network_that_was_removed_is_made_again() -> None:
    with Engine() as engine:
        config = load("container", config=OPTIONS).container
        order = Order(IMAGE, ("sleep", "600"), {}, "1000", "/", (), {}, config, ports=(5701,))
        container = engine.create(None, order.settings() | {"image": IMAGE}, order.host())
        try:
            networks.start(engine, container, order)
            assert list(engine.inspect_container(container).ports) == [5701]
        finally:
            engine.remove(container)
        networks.delete_network(engine)


def test_another_network_of_that_name_is_not_used() -> None:
    options, nowhere = networks._OPTIONS, [{"AuxiliaryAddresses": {"DefaultGatewayIPv4": "10.0.0.1"}}]
    good = {"Labels": {networks.LABEL: "1"}, "Options": options, "IPAM": {"Config": nowhere}}
    networks._check(good)
    bads: tuple[dict[str, object], ...] = ({"Labels": None}, {"Options": {}}, {"IPAM": {"Config": [{}]}})
    for bad in bads:
        with pytest.raises(EngineRefused, match="docker network rm kernelexec"):
            networks._check(good | bad)


def test_a_network_of_no_container_is_removed() -> None:
    with Engine() as engine:
        created = engine.api.create_network("kernelexec-test", "bridge", labels={networks.LABEL: "1"})["Id"]
        networks.delete_network(engine)
        with pytest.raises(NotFound):
            engine.api.inspect_network(created)


def test_a_bridge_that_was_asked_for_stays_one(tmp_path: Path) -> None:
    config = {"container": {"image": IMAGE, "transport": "tcp", "network": "bridge"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        assert session.execute("1").notes == ()
        with Engine() as engine:
            answer = engine.api.inspect_container(container_of(session).id)
        assert list(answer["NetworkSettings"]["Networks"]) == ["bridge"]


def test_ports_of_the_machine_itself_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="network='host' and transport='tcp'"):
        load("container", config={"container": {"network": "host", "transport": "tcp"}})


OWNER = """
import json, sys, time
from kernelexec import Executor
from kernelexec.kernel import startup
startup.LEASE_SECONDS = float(sys.argv[3])
with Executor("container", workspace=sys.argv[1], config=json.loads(sys.argv[2])) as executor:
    executor.session("a").execute("x = 1")
    print("ready", flush=True)
    time.sleep(600)
"""


def killed_owner(workspace: Path, lease_seconds: float) -> None:
    command = [sys.executable, "-c", OWNER, str(workspace), json.dumps(OPTIONS), str(lease_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        owner.send_signal(signal.SIGKILL)


def test_a_container_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    killed_owner(tmp_path, slow(3))
    until(lambda: not any(actual.running for actual in containers(f"{WORKSPACE}={tmp_path}")))
    with Executor("container", workspace=tmp_path, config=OPTIONS):
        gone(tmp_path)


def test_the_next_executor_removes_it_and_does_not_go_on_with_it(tmp_path: Path) -> None:
    killed_owner(tmp_path, 600.0)
    with Executor("container", workspace=tmp_path, config=OPTIONS) as executor:
        assert executor.sessions() == ()
        gone(tmp_path)


def gone(workspace: Path) -> None:
    until(lambda: not containers(f"{WORKSPACE}={workspace}"))


def test_what_a_kernel_that_does_not_start_had_is_removed(tmp_path: Path) -> None:
    config = {"container": {"image": IMAGE, "transport": "tcp", "python": "/bin/false", "runtime": "image"}}
    with Executor("container", workspace=tmp_path, config=config) as executor:
        with pytest.raises(KernelStartFailed, match="ended while it started"):
            executor.session("a").execute("1")
        assert containers(f"{WORKSPACE}={tmp_path}") == []


def test_the_private_directory_is_not_in_it(session: Session) -> None:
    session.execute("1")
    assert session.connection_file is not None
    there = str(Path(session.connection_file).parent)
    assert session.execute(f"import os; os.path.exists({there!r})").text == "False"
