"""The driver's side of a relay, whatever the kernel's side does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import EngineUnavailable
from kernelexec.launcher.relayed_connections import HELLO, READY, _frame
from kernelexec.provisioning.container import relay
from kernelexec.provisioning.container.relay import KernelRelay
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from tests.support.pace import BOUND
from tests.support.remains import descriptors


@pytest.fixture
def runtime(short_path: Path) -> Iterator[RuntimeDirectory]:
    directory = RuntimeDirectory(short_path / "1")
    yield directory
    directory.remove()


def relay_of(runtime: RuntimeDirectory) -> KernelRelay:
    engine: Any = None
    return KernelRelay(engine, "container", ("python",), user="0:0", directory=runtime.path)


def test_a_kernel_cannot_say_that_it_has_a_relay(runtime: RuntimeDirectory) -> None:
    runtime.create()
    (runtime.path / "connection.json").write_text(
        (runtime.path / "connection.json").read_text().replace("{", '{"kernelexec_relayed": true, ', 1)
    )
    assert runtime.take_over() is not None
    assert not runtime.is_relayed


def test_a_report_is_written_to_a_pipe_only(runtime: RuntimeDirectory, tmp_path: Path) -> None:
    runtime.create("relayed")
    (tmp_path / "victim").write_text("kept")
    (runtime.path / "ready").unlink()
    (runtime.path / "ready").symlink_to(tmp_path / "victim")

    async def run() -> None:
        side = relay_of(runtime)
        side._connections.link.connect(lambda _: None)
        side._connections.link.feed(_frame(HELLO, 0, b"a" * 16 + b"\0" * 24) + _frame(READY, 0, b"written"))

    asyncio.run(run())
    assert (tmp_path / "victim").read_text() == "kept"


@pytest.mark.parametrize("failure", [RuntimeError("another error"), EngineUnavailable("away")], ids=["error", "away"])
def test_clients_learn_that_no_program_can_be_started(
    failure: Exception, runtime: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_connected = threading.Event()

    def fail(*_arguments: object, **_options: object) -> None:
        assert is_connected.wait(BOUND)
        raise failure

    monkeypatch.setattr(relay, "ContainerStream", fail)
    monkeypatch.setattr(relay, "RELAY_SECONDS", 0.5)
    runtime.create("relayed")

    async def run() -> None:
        side = relay_of(runtime)
        await side.open()
        reader, writer = await asyncio.open_unix_connection(str(runtime.path / "s-1"))
        is_connected.set()
        async with asyncio.timeout(BOUND):
            assert await reader.read(1) == b""
        writer.close()
        await side.close()
        with pytest.raises(OSError, match=r"refused|No such file"):
            await asyncio.open_unix_connection(str(runtime.path / "s-1"))

    asyncio.run(run())


def test_a_relay_that_is_closed_while_it_opens_leaves_nothing(runtime: RuntimeDirectory) -> None:
    runtime.create("relayed")

    async def run() -> None:
        before = descriptors()
        side = relay_of(runtime)
        opening = asyncio.ensure_future(side.open())
        await asyncio.sleep(0)
        await side.close()
        await opening
        await asyncio.sleep(0)
        assert not any(server.is_serving() for server in side._servers)
        assert descriptors() == before

    asyncio.run(run())
