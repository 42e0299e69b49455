"""Kernels that are reached by encrypted tcp: the clients that may speak with them, their start, and their end by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import zmq
import zmq.utils.z85

from kernelexec.config import Config, OutputLimits
from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.kernel import Kernel, request_once, startup
from kernelexec.kernel.client import KernelClient
from kernelexec.kernel.wire.channels import Connector
from kernelexec.kernel.wire.zmtp import GREETING, message, ready_command
from kernelexec.outputs import Collector
from kernelexec.provisioning import Connection, LocalBackend, RuntimeDirectory, Transport
from kernelexec.provisioning.provisioners.local import LocalKernelProvisioner
from kernelexec.provisioning.runtime import kernel_directory
from kernelexec.provisioning.runtime.ports import find_free_ports
from tests.support.night import named_cases
from tests.support.pace import slow, until_equal
from tests.support.remains import descriptors, marked_processes
from tests.support.takeovers import wait_until

BOUND = 60.0
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
Use = Callable[[Kernel], Awaitable[None]]


def with_kernel(path: Path, use: Use, transport: Transport = "curve", **settings: Any) -> None:
    """A kernel whose private directory is ``path/1``; it ends with ``use``."""

    async def run() -> None:
        config = Config(isolation="local", **settings)
        async with anyio.create_task_group() as tasks:
            location = LocalBackend(config, str(path), transport=transport)
            kernel = Kernel(config, RuntimeDirectory(path / "1"), cwd=str(path), identity=b"me", backend=location)
            await kernel.start(tasks)
            try:
                await use(kernel)
            finally:
                await kernel.stop(1.0)

    asyncio.run(asyncio.wait_for(run(), BOUND))


async def run_cell(kernel: Kernel, code: str) -> Collector:
    collector = Collector(OutputLimits())
    execution = kernel.submit(code, collector, Collector(OutputLimits()))
    await execution.ended.wait()
    assert execution.end == "complete"
    return collector


async def text_of(kernel: Kernel, code: str) -> str:
    return "".join(getattr(output, "text", "") for output in (await run_cell(kernel, code)).outputs())


def connection_to(path: Path) -> Connection:
    actual = RuntimeDirectory(path / "1").read_connection()
    assert actual is not None
    return actual


def test_nothing_is_left_behind(short_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        assert await text_of(kernel, "print(6 * 7)") == "42\n"
        # the kernel's own file was read, and is gone
        assert list((short_path / "temporary").iterdir()) == []

    (short_path / "temporary").mkdir()
    with_kernel(short_path, use, environment={"set": {"TMPDIR": str(short_path / "temporary")}})
    threads, before = set(threading.enumerate()), Counter(descriptors())
    with_kernel(short_path, use, environment={"set": {"TMPDIR": str(short_path / "temporary")}})
    until_equal(lambda: Counter(descriptors()) - before, Counter())
    # one that an earlier test's loop left may end at any time; a new one is ours, and ends when its loop has
    wait_until(lambda: not set(threading.enumerate()) - threads)
    until_equal(marked_processes, {})
    # the virtual environment is its session's
    assert sorted(location.name for location in short_path.iterdir()) == [".kernelexec", "temporary"]


@pytest.mark.nightly
def test_a_kernel_costs_three_sockets(short_path: Path) -> None:
    before = descriptors().get("socket", 0)

    async def use(kernel: Kernel) -> None:
        loops_own = 2
        assert descriptors()["socket"] == before + loops_own + 3

    with_kernel(short_path, use)


@pytest.mark.nightly
def test_the_order_is_not_in_the_environment_of_cells(short_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        assert await text_of(kernel, "import os; print('KERNELEXEC_LAUNCH' in os.environ)") == "False\n"
        assert await text_of(kernel, "!env | grep -c KERNELEXEC_LAUNCH") == "0\n"

    with_kernel(short_path, use)


@pytest.mark.nightly
def test_a_message_over_the_limit_is_counted_and_what_follows_comes(short_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        collector = await run_cell(kernel, "display({'text/plain': 'x' * 3_000_000}, raw=True); print('next')")
        assert collector.dropped_bytes > 3_000_000
        assert [getattr(output, "text", None) for output in collector.outputs()][-1] == "next\n"
        assert await text_of(kernel, "print('and on')") == "and on\n"

    with_kernel(short_path, use, output={"message_bytes": 1_000_000})


@pytest.mark.nightly
def test_a_kernel_that_dies_at_its_start_is_a_failure_at_once(short_path: Path) -> None:
    script = short_path / "python"
    script.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
    script.chmod(0o700)
    with pytest.raises(ExceptionGroup) as caught:
        with_kernel(short_path, lambda _: asyncio.sleep(0), python=str(script), budgets={"start": BOUND})
    assert caught.group_contains(KernelStartFailed, match=r"(?s)ended while it started \(exited, exit code 3\).*no such luck")


@pytest.mark.nightly
def test_a_kernel_that_never_serves_is_given_up_with_the_reason(short_path: Path) -> None:
    script = short_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o700)
    with pytest.raises(ExceptionGroup) as caught:
        with_kernel(short_path, lambda _: asyncio.sleep(0), python=str(script), budgets={"start": slow(2)})
    assert caught.group_contains(KernelStartFailed, match=f"did not serve within {slow(2)} s .*Connect call failed")
    until_equal(marked_processes, {})


STRANGERS = {
    "without encryption": GREETING + ready_command(b"DEALER", b"me") + message([b"x"]),
    "ZMTP 2.0": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05\x00\x00" + b"\x00\x01x",
    "ZMTP 1.0": b"\x01\x00" + b"\x02\x00x",
}


@pytest.mark.parametrize("hello", named_cases(STRANGERS, {"without encryption"}))
def test_a_client_without_encryption_is_refused_on_every_port(short_path: Path, hello: bytes) -> None:
    def answer(address: str, port: int) -> bytes:
        with socket.create_connection((address, port), timeout=BOUND) as stranger:
            stranger.sendall(hello)
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := stranger.recv(1000):
                    heard += chunk
            return heard

    async def use(kernel: Kernel) -> None:
        connection = connection_to(short_path)
        assert connection.address is not None
        for channel in CHANNELS:
            heard = await asyncio.to_thread(answer, connection.address, connection.port(channel))
            assert b"READY" not in heard
            assert len(heard) <= len(GREETING)
        assert await text_of(kernel, "print('still here')") == "still here\n"

    with_kernel(short_path, use)


async def refusal(connection: Connection) -> str:
    link = KernelClient(connection.key, b"another", 10_000, lambda _: None)
    with pytest.raises(KernelConnectionFailed) as caught:
        await link.connect(Connector(connection, None, is_serving=False))
    link.close()
    return str(caught.value)


@pytest.mark.nightly
def test_the_wrong_server_key_is_refused_and_the_kernel_goes_on(short_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        right = connection_to(short_path)
        wrong = zmq.utils.z85.decode(zmq.curve_keypair()[0])
        assert "no handshake" in await refusal(Connection(right.prefix, right.key, right.address, right.ports, wrong))
        assert await text_of(kernel, "print('still here')") == "still here\n"

    with_kernel(short_path, use)


@pytest.mark.nightly
def test_the_server_key_alone_lets_no_client_run_anything(short_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        right = connection_to(short_path)
        link = KernelClient(b"another key", b"another", 10_000, lambda _: None)
        with anyio.move_on_after(BOUND):
            await link.connect(
                Connector(Connection(right.prefix, b"", right.address, right.ports, right.server_key), None, is_serving=True),
                only="shell",
            )
        assert not await link.is_responsive(0.5)
        link.close()
        assert await text_of(kernel, "print('still here')") == "still here\n"

    with_kernel(short_path, use)


ATTACH = """
import sys
from jupyter_client.blocking.client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive("print(x)", timeout=60)
client.stop_channels()
"""


@pytest.mark.nightly
def test_any_jupyter_client_and_any_process_of_ours_can_attach_by_the_connection_file(short_path: Path) -> None:
    async def use(kernel: Kernel) -> None:
        await run_cell(kernel, "x = 5")
        command = [sys.executable, "-c", ATTACH, str(kernel.connection_file)]
        assert (await anyio.run_process(command)).stdout == b"5\n"
        reported = await request_once(RuntimeDirectory(short_path / "1"), "kernelexec_variables_request", {}, patience=BOUND)
        assert [variable["name"] for variable in reported["variables"]] == ["x"]
        assert await text_of(kernel, "print(x)") == "5\n"

    with_kernel(short_path, use)


class Publisher:
    """Stands on ports of its own before a kernel, as an engine does: it takes connections before the kernel listens."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.refused = 0
        self.where: dict[str, Any] = {"ip": "127.0.0.1"}
        self._behind = ports
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        for name, port in self._behind.items():

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
                try:
                    there, back = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    self.refused += 1
                    writer.close()
                    return
                await asyncio.gather(copy(reader, back), copy(there, writer))

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self._servers.append(server)
            self.where[name] = server.sockets[0].getsockname()[1]

    def close(self) -> None:
        for server in self._servers:
            server.close()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(100_000):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """A provisioner whose kernels are reached at other ports than they bind, known once they run."""
    ports = find_free_ports(tuple(f"{channel}_port" for channel in CHANNELS))[1]
    monkeypatch.setattr(kernel_directory, "PUBLISHED_PORTS", ports)
    publisher, launch = Publisher(ports), LocalKernelProvisioner.launch_kernel

    async def launch_kernel(self: LocalKernelProvisioner, cmd: list[str], **kwargs: Any) -> Any:
        await publisher.open()
        await launch(self, cmd, **kwargs)
        return publisher.where

    monkeypatch.setattr(LocalKernelProvisioner, "launch_kernel", launch_kernel)
    return publisher


@pytest.mark.nightly
def test_a_kernel_is_reached_where_its_ports_are_published_once_it_serves(short_path: Path, published: Publisher) -> None:
    async def use(kernel: Kernel) -> None:
        assert published.refused > 0
        assert await text_of(kernel, "print('x' * 1000)") == "x" * 1000 + "\n"
        content = json.loads(kernel.connection_file.read_text())
        assert {name: content[name] for name in published.where} == published.where
        assert connection_to(short_path).ports == {name: port for name, port in published.where.items() if name != "ip"}
        await kernel.interrupter.signal(signal.SIGKILL)
        await kernel.died.wait()
        published.close()

    with_kernel(short_path, use, "published")


@pytest.mark.nightly
def test_a_port_that_was_not_published_is_a_clear_failure(short_path: Path, published: Publisher) -> None:
    published.where["iopub_port"] = None
    published._behind = {name: port for name, port in published._behind.items() if name != "iopub_port"}
    with pytest.raises(ExceptionGroup) as caught:
        with_kernel(short_path, lambda _: asyncio.sleep(0), "published")
    published.close()
    assert caught.group_contains(KernelStartFailed, match="iopub_port was not published")
    until_equal(marked_processes, {})


@pytest.mark.nightly
def test_a_living_owner_keeps_its_kernel_whatever_the_cell_does(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = slow(2)
    beyond = math.ceil(lease * 1.5)
    monkeypatch.setattr(startup, "LEASE_SECONDS", lease)

    async def use(kernel: Kernel) -> None:
        await run_cell(kernel, f"import time; time.sleep({beyond})")
        await run_cell(kernel, f"import ctypes; ctypes.PyDLL(None).sleep({beyond})")
        assert await text_of(kernel, "print('still here')") == "still here\n"

    with_kernel(short_path, use, budgets={"start": 30.0})


OWNER = f"""
import asyncio, os, signal, sys, time
from pathlib import Path
import anyio
from kernelexec.outputs import Collector
from kernelexec.config import Config, OutputLimits
from kernelexec.kernel import Kernel, startup
from kernelexec.provisioning import LocalBackend, RuntimeDirectory
startup.LEASE_SECONDS = {slow(3)}

async def main(path):
    async with anyio.create_task_group() as tasks:
        config = Config(isolation="local")
        backend = LocalBackend(config, str(path), transport="curve")
        kernel = Kernel(config, RuntimeDirectory(path / "1"), cwd=str(path), identity=b"me", backend=backend)
        await kernel.start(tasks)
        if (child := os.fork()) == 0:
            time.sleep(600)
            os._exit(0)
        output = Collector(OutputLimits())
        kernel.submit("import subprocess; print('begun', flush=True); subprocess.run(['sleep', '600'])", output, output)
        while not output.outputs():
            await asyncio.sleep(0.01)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.nightly
def test_a_kernel_ends_with_all_its_commands_when_its_owner_is_killed_though_a_forked_child_lives(short_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(short_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as owner:
        assert owner.stdout is not None
        child = psutil.Process(int(owner.stdout.readline()))
        try:
            until_equal(marked_processes, {})
            assert child.is_running()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)


@pytest.mark.nightly
def test_the_order_says_all_that_a_kernel_elsewhere_needs(short_path: Path) -> None:
    reported = RuntimeDirectory(short_path / "1")
    connection = reported.create("curve")
    order = json.loads(reported.launch_environment("token", {}, lease_seconds=5.0)["KERNELEXEC_LAUNCH"])
    assert order["lease_seconds"] == 5.0
    assert "owner" not in order
    assert order["connection"] == json.loads(reported.connection_file.read_text())
    assert zmq.utils.z85.decode(order["connection"]["curve_publickey"]) == connection.server_key
    assert reported.connection_file.stat().st_mode & 0o777 == 0o600
    assert reported.read_connection() == connection
    assert list(reported.path.iterdir()) == []  # what a kernel could change says no address
    reported.remove()
    assert list(short_path.iterdir()) == []


def test_a_kernel_names_no_address_of_its_own(short_path: Path) -> None:
    runtime = RuntimeDirectory(short_path / "1")
    runtime.create()
    file = runtime.path / "connection.json"
    public, _ = zmq.curve_keypair()
    content = json.loads(file.read_text()) | {"transport": "tcp", "ip": "192.0.2.1", "curve_publickey": public.decode()}
    file.write_text(json.dumps(content))
    actual = connection_to(short_path)
    assert (actual.address, actual.server_key) == (None, None)
    runtime.remove()
