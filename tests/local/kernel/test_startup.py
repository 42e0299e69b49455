"""Kernels that do not come up: a clear error inside the budget, nothing written to a stranger, nothing left behind."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, KernelStartFailed
from tests.hostile.cells import MEANS
from tests.hostile.starts import STARTS, program
from tests.support.pace import BOUND, slow, until_equal
from tests.support.remains import descriptors, processes_of, runtime_directories


class Victim:
    """Another daemon of this machine: it listens on a unix socket and remembers all that reaches it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received = bytearray()
        self.connections = 0
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            peer, _ = self._server.accept()
            with peer:
                peer.settimeout(BOUND)
                if (message := peer.recv(65536)) == b"stop":
                    return
                self.connections += 1
                self.received += message

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
            last.sendall(b"stop")
        self._thread.join()
        self._server.close()


@pytest.fixture
def victim(short_path: Path) -> Iterator[Victim]:
    daemon = Victim(short_path / "victim")
    yield daemon
    daemon.close()


@pytest.mark.parametrize(("body", "message"), STARTS.values(), ids=STARTS)
def test_a_kernel_that_does_not_come_up_is_a_clear_error(body: str, message: str, short_path: Path, victim: Victim) -> None:
    comes_to_a_failure = message != "did not serve within"
    config = {
        "python": program(short_path, body),
        "budgets": {"start": slow(3) if comes_to_a_failure else 0.5, "grace": 0.2},
        "environment": {"set": {"VICTIM": str(victim.path)}},
        "confinement": {"level": "off"},  # the program may do what it can
    }
    open_before, directories_before = Counter(descriptors()), runtime_directories()
    processes_before = {*processes_of(os.getpid())}
    with Executor(isolation="local", workspace=short_path / "w", config=config) as executor:
        with pytest.raises(KernelStartFailed, match=f"(?s){message}") as caught:
            executor.session("s")
        assert caught.value.may_have_run is False
        assert executor.sessions() == ()
        until_equal(lambda: {*processes_of(os.getpid())} - processes_before, set())
    assert bytes(victim.received) == b""
    until_equal(lambda: Counter(descriptors()) - open_before, Counter())
    until_equal(lambda: runtime_directories() - directories_before, set())


def test_an_interpreter_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    with Executor(isolation="local", workspace=tmp_path, config={"python": "/no/such/python"}) as executor:
        with pytest.raises(KernelStartFailed, match="/no/such/python cannot be started: No such file"):
            executor.session("s")
        assert executor.sessions() == ()


def test_an_interpreter_without_ipykernel_is_a_clear_error(short_path: Path) -> None:
    config = {"python": program(short_path, "sys.stderr.write(\"No module named 'ipykernel'\"); sys.exit(1)")}
    with (
        Executor(isolation="local", workspace=short_path / "w", config=config) as executor,
        pytest.raises(KernelStartFailed, match="has no ipykernel: install it there with `pip install ipykernel`"),
    ):
        executor.session("s")


@pytest.mark.parametrize("then", ["go on", "restart", "die", "hang"])
def test_sockets_that_become_links_to_a_victim_reach_it_with_no_byte(then: str, tmp_path: Path, victim: Victim) -> None:
    with Executor(
        isolation="local", workspace=tmp_path, config={"budgets": {"grace": 0.2, "compiled": 0.2}, "checkpoints": "named"}
    ) as executor:
        session = executor.session("s")
        session.execute(MEANS)
        replaced = session.execute(
            "for path in list(place.iterdir()):\n"
            "    if path.is_socket():\n"
            f"        path.unlink(); path.symlink_to({str(victim.path)!r}); print(path.name)"
        )
        assert len(replaced.stdout.splitlines()) == 5
        match then:
            case "restart":
                session.restart()
            case "die":
                session.execute("os._exit(1)")
            case "hang":
                session.execute("os.kill(os.getpid(), signal.SIGSTOP)", timeout=slow(2))
        assert session.execute("6 * 7").text == "42"
    assert (victim.connections, bytes(victim.received)) == (0, b"")
