"""What differs between systems on the driver's side: each choice for each system, and that no other module makes one."""

from __future__ import annotations

import os
import socket
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.config import Config
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import Connection, KernelSpec, LocalBackend, backend_for, platform
from kernelexec.provisioning.launch.kernelspec import InstalledSpec
from kernelexec.provisioning.platform import Platform
from kernelexec.provisioning.runtime.ports import find_free_ports
from kernelexec.provisioning.runtime.processes import read_peer

SYSTEMS = ("linux", "darwin", "win32")
PYTHON = InstalledSpec("own", "own", "", KernelSpec(argv=["python", "-m", "ipykernel_launcher"], language="python"))
#: What each system is, field by field, in the order of ``SYSTEMS``.
CHOICES: dict[str, tuple[object, object, object]] = {
    "has_unix_sockets": (True, True, False),
    "has_loopback_range": (True, False, False),
    "has_fork_server": (True, False, False),
    "has_pidfd": (True, False, False),
    "has_peer_credentials": (True, False, False),
    "process_group_options": ({"start_new_session": True}, {"start_new_session": True}, {"creationflags": 0x200}),
    "has_group_signals": (True, True, False),
    "venv_directory": ("bin", "bin", "Scripts"),
    "venv_interpreter": ("python", "python", "python.exe"),
    "confinement": (("no-new-privileges", "landlock", "capabilities", "no-network"), (), ()),
    "has_local_containers": (True, False, False),
    "lock_module": ("fcntl", "fcntl", "msvcrt"),
    "has_user_ids": (True, True, False),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """A system in the place of this machine's."""
    actual = Platform.of(str(request.param))
    monkeypatch.setattr(platform, "PLATFORM", actual)
    return actual


def become(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "PLATFORM", Platform.of(name))


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_is_made_for_each_system(name: str) -> None:
    assert tuple(getattr(Platform.of(system), name) for system in SYSTEMS) == CHOICES[name]


def test_every_choice_is_in_the_table() -> None:
    assert {"name", *CHOICES} == set(Platform.__dataclass_fields__)


def test_this_machine_is_the_one_that_python_names() -> None:
    assert Platform.of(sys.platform) == platform.PLATFORM


def test_an_unknown_system_counts_as_the_poorer_unix() -> None:
    unknown, mac = Platform.of("freebsd14"), Platform.of("darwin")
    assert {name: getattr(unknown, name) for name in CHOICES} == {name: getattr(mac, name) for name in CHOICES}


def test_kernels_on_this_machine_are_reached_as_the_system_can(system: Platform, tmp_path: Path) -> None:
    directory = backend_for(Config(isolation="local"), session="a", workspace=tmp_path, root=tmp_path)
    if system.has_unix_sockets:
        assert directory.transport_for(None) == "ipc"
    else:
        with pytest.raises(KernelStartFailed, match="need unix sockets, which this system does not have: choose containers"):
            directory.transport_for(None)


def test_a_kernel_that_is_not_ours_takes_unix_sockets_where_the_system_has_them(system: Platform, tmp_path: Path) -> None:
    directory = LocalBackend(Config(isolation="local"), str(tmp_path))
    assert directory.transport_for(PYTHON) == ("ipc" if system.has_unix_sockets else "tcp")


def test_where_kernels_need_ports_none_starts_without_a_network(system: Platform, tmp_path: Path) -> None:
    config = Config.model_validate({"isolation": "local", "confinement": {"network": False}})
    directory = backend_for(config, session="a", workspace=tmp_path, root=tmp_path)
    if system.has_unix_sockets:
        assert directory.transport_for(PYTHON) == "ipc"
    else:
        with pytest.raises(KernelStartFailed, match="'own' listens on ports"):
            directory.transport_for(PYTHON)


def test_ports_are_of_an_address_that_the_system_has(system: Platform) -> None:
    addresses = {find_free_ports(("shell",))[0] for _ in range(4)}
    assert (addresses == {"127.0.0.1"}) == (system.name != "linux")


def test_a_fork_server_is_had_where_kernels_can_be_forked(system: Platform, tmp_path: Path) -> None:
    executor = Executor("local", workspace=tmp_path)
    roster = executor._executor._registry
    assert (roster._forks is not None) == (system.name == "linux")


def test_the_peer_of_a_socket_is_known_where_the_system_reports_it(system: Platform) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert read_peer(ours) == ((os.getpid(), os.getuid()) if system.name == "linux" else None)


def test_owners_of_files_are_not_checked_on_windows(system: Platform) -> None:
    numbered = system.name != "win32"
    assert platform.user_id() == (os.getuid() if numbered else 0)
    assert platform.is_root() == (numbered and os.geteuid() == 0)
    assert Connection(Path("s"), b"").uid == platform.user_id()


@pytest.mark.parametrize("name", ["linux", "darwin"])
def test_a_lock_is_one_owners_or_many_readers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(name, monkeypatch)
    path = tmp_path / "file"
    with path.open("w") as first, path.open() as second, path.open() as third:
        platform.lock(second.fileno(), shared=True)
        platform.lock(third.fileno(), shared=True)
        with pytest.raises(BlockingIOError):
            platform.lock(first.fileno())


class Msvcrt(types.ModuleType):
    """What is known of the module that only Windows has: one lock of some bytes, from where the file is read."""

    LK_NBLCK = 2

    def __init__(self, *, taken: bool) -> None:
        super().__init__("msvcrt")
        self.taken = taken
        self.locked: list[tuple[int, int]] = []

    def locking(self, fd: int, mode: int, count: int) -> None:
        assert mode == self.LK_NBLCK
        if self.taken:
            raise PermissionError(13, "Permission denied")
        self.locked.append((os.lseek(fd, 0, os.SEEK_CUR), count))


@pytest.fixture(params=[False, True], ids=["free", "taken"])
def msvcrt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Msvcrt]:
    become("win32", monkeypatch)
    module = Msvcrt(taken=bool(request.param))
    monkeypatch.setitem(sys.modules, "msvcrt", module)
    return module


def test_on_windows_an_unread_byte_is_locked(msvcrt: Msvcrt, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"some text")
    with path.open("rb", buffering=0) as file:
        file.seek(4)
        if msvcrt.taken:
            with pytest.raises(BlockingIOError):
                platform.lock(file.fileno())
        else:
            platform.lock(file.fileno())
            assert msvcrt.locked == [(2**31 - 2, 1)]
        assert file.read() == b" text"
