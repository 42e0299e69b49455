"""A kernel's private directory: its sockets, its connection file, and the two pipes by which life and death are said.

Everything in it belongs to us (0700), but the kernel can write there too: what is read back is opened without following
links, must be a regular file, and is capped.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.launcher.protocol import LaunchOptions
from kernelexec.provisioning import platform
from kernelexec.provisioning.jupyter.installed import Transport
from kernelexec.provisioning.runtime.locations import SOCKET_PATH_BYTES
from kernelexec.provisioning.runtime.owned_directory import hold, let_go
from kernelexec.provisioning.runtime.ports import free_ports
from kernelexec.workspace.rmtree import DIRECTORY, clear, remove_tree
from kernelexec.workspace.safe_files import create_file, read_regular

#: What stands for the channels' ports in the names of unix sockets.
PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
#: Where a kernel in a network of its own listens there; nobody else does, and an ordinary user may.
PUBLISHED_PORTS = {name: 5700 + number for name, number in PORTS.items()}
_LINE_BYTES = 4096
#: The modes of the directory: of a kernel that runs as this user, and as another.
_OWN, _SHARED = 0o700, 0o1770


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a kernel's sockets are and the key that signs its messages.

    Unix sockets beside ``prefix``; or, for a kernel that cannot have them, ports of a loopback ``address``. Where there is a
    ``server_key``, the connection is encrypted, and only who has the secret to this key is the kernel.
    """

    prefix: Path
    key: bytes
    address: str | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    server_key: bytes | None = None
    uid: int = field(default_factory=platform.user)
    """Who the kernel runs as."""

    def path(self, channel: str) -> Path:
        """The socket of a channel: shell, iopub, stdin, control or hb."""
        return self.prefix.with_name(f"{self.prefix.name}-{PORTS[channel + '_port']}")

    def port(self, channel: str) -> int:
        """The port of a channel, where there is an address."""
        return self.ports[f"{channel}_port"]


def _new_keys() -> dict[str, str]:
    """A key pair for the kernel's side of encrypted connections, under the names of connection files."""
    public, secret = zmq.curve_keypair()
    return {"curve_publickey": public.decode(), "curve_secretkey": secret.decode()}


class RuntimeDirectory:
    """The private directory of one kernel process."""

    def __init__(self, path: Path, going_on: RuntimeDirectory | None = None) -> None:
        """``path`` is named for the kernel's number in its session; one that is ``going_on`` gets that name beside its own."""
        self._called, self._goes_on = path, going_on is not None
        self.path: Path
        if going_on is not None:
            self.path = going_on.path
        else:
            self.path = path.with_name(path.readlink().name) if path.is_symlink() else path
        self.connection_file = self.path / "connection.json"
        self.stderr_file = self.path / "stderr"
        self._bridge: dict[str, Any] | None = None
        self._ready: int | None = None
        self._owner: int | None = None
        self._told: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        """Which of its session's kernels has it."""
        return int(self._called.name)

    @property
    def session(self) -> Path:
        """The session's private directory, which kernels do not see."""
        return self.path.parent

    def create(
        self,
        transport: Transport = "ipc",
        name: str = "kernelexec",
        *,
        key: str | None = None,
        scheme: str = "hmac-sha256",
        user: tuple[int, int] | None = None,
    ) -> Connection:
        """Make the directory, the connection file of a kernel of that name, and its pipes.

        Messages are signed with a new key, or with one that is given. For a kernel that runs as another user it is shared with
        that user's group: it can make files there, and can neither replace nor change these.
        For a ``bridged`` kernel the address is such that nobody has its ports, in whatever network the kernel is.
        An encrypted kernel may not see the directory: it is told all in its order, has no pipes but a lease, and the file is
        for other clients. Where its ports are published, these are known, and the file is there, after ``publish``.

        Raises:
            KernelStartFailed: the path is too long for unix sockets, no port of a loopback address is free, or the directory
                cannot be shared with that user.
        """
        prefix = self.path / "s"
        if len(os.fsencode(prefix)) + 2 > SOCKET_PATH_BYTES:
            message = f"{prefix}: a socket's path ends at {SOCKET_PATH_BYTES} bytes; set XDG_RUNTIME_DIR or TMPDIR shorter."
            raise KernelStartFailed(message)
        if self._goes_on:
            self._called.symlink_to(self.path.name)
        else:
            self.path.mkdir(mode=_OWN, parents=True)
        key = secrets.token_hex(32) if key is None else key
        uid, gid = user or (os.getuid(), os.getgid())
        said = {"key": key, "signature_scheme": scheme, "kernel_name": name, "kernelexec_uid": uid}
        if transport == "published":
            self._told = {"transport": "tcp", "ip": "0.0.0.0", **PUBLISHED_PORTS, **said, **_new_keys()}  # noqa: S104 - its own
            return self._encrypted(prefix, None, {})
        address, ports = (None, PORTS) if transport == "ipc" else free_ports(tuple(PORTS))
        content = {"transport": "tcp" if address else "ipc", "ip": address or str(prefix), **ports, **said}
        if transport == "curve":
            self._told = content | _new_keys()
            self._write(self._told)
            return self._encrypted(prefix, address, ports)
        self._write(content)
        for pipe in ("ready", "owner"):
            os.mkfifo(self.path / pipe, 0o600)
        if uid != os.getuid():
            self._share(uid, gid)
        self._ready = os.open(self.path / "ready", os.O_RDONLY | os.O_NONBLOCK)
        self._owner = hold(os.open(self.path / "owner", os.O_RDWR | os.O_NONBLOCK))
        if transport != "bridged":
            return Connection(prefix, key.encode(), address, ports, uid=uid)
        self._bridge = {"address": address, "sockets": {f"{prefix}-{PORTS[name]}": port for name, port in ports.items()}}
        return Connection(prefix, key.encode(), uid=uid)

    def _share(self, uid: int, gid: int) -> None:
        modes = {self.connection_file: 0o640, self.path / "ready": 0o620, self.path / "owner": 0o640, self.path: _SHARED}
        try:
            for path, mode in modes.items():
                os.chown(path, -1, gid)
                path.chmod(mode)
        except OSError as exc:
            message = f"container.user: kernels of {uid}:{gid} can be started by root only ({exc.strerror}). Leave it out."
            raise KernelStartFailed(message) from exc

    def take_over(self) -> Connection | None:
        """Become the owner of a kernel that waits for one; None where none does. The kernel knows from now on."""
        try:
            fd = os.open(self.path / "owner", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        self._owner = hold(fd)
        return self.connection() if stat.S_ISFIFO(os.fstat(fd).st_mode) else None

    @property
    def leased(self) -> bool:
        """Whether the kernel may not see the directory."""
        return bool(self._told)

    def publish(self, connection: Connection, where: Mapping[str, Any]) -> Connection:
        """Where a kernel is reached now that it runs: its ports may be published, as ``where`` says by their names and ``ip``.

        Raises:
            KernelStartFailed: a port was not published.
        """
        if connection.server_key is None or connection.address is not None:
            return connection
        place = {name: where.get(name) for name in ("ip", *PORTS)}
        if missing := [name for name, found in place.items() if found is None]:
            message = f"The kernel cannot be reached: {', '.join(missing)} was not published on this machine."
            raise KernelStartFailed(message)
        self._write(self._told | place)
        return replace(connection, address=str(place.pop("ip")), ports={name: int(port or 0) for name, port in place.items()})

    def connection(self) -> Connection | None:
        """Where the sockets of a kernel are that another process started; None where that cannot be read."""
        with suppress(ValueError, RecursionError, TypeError, LookupError, OverflowError):
            said = json.loads(self.read(self.connection_file.name, _LINE_BYTES))
            key, uid = str.encode(said["key"]), said.get("kernelexec_uid", os.getuid())
            if "curve_publickey" in said:
                ports = {name: int(said[name]) for name in PORTS}
                return Connection(self.path / "s", key, str(said["ip"]), ports, z85.decode(said["curve_publickey"]))
            if isinstance(uid, int):
                return Connection(self.path / "s", key, uid=uid)
        return None

    def launch_environment(
        self,
        token: str,
        limits: dict[str, int],
        *,
        lease_seconds: float | None = None,
        patience: float = 0.0,
        tape_bytes: int = 0,
        **more: object,
    ) -> dict[str, str]:
        """What the launcher inside the kernel's process is told; an encrypted one's first lease among it.

        ``patience`` is how long it waits for a new owner, in seconds, ``tape_bytes`` what it keeps for that. ``more`` is added.
        """
        order: dict[str, Any] = {"token": token, "limits": limits, **more}
        if self._told:
            order |= {"connection": self._told, "lease_seconds": lease_seconds}
        else:
            order |= {name: str(self.path / name) for name in ("ready", "owner", "stacks")}
            order["crash_buffer"] = str(self.path / "words")
            order |= {
                "scratch": str(self.path),
                "unix_proxy": self._bridge,
                "grace_seconds": patience,
                "replay_bytes": tape_bytes,
            }
        return LaunchOptions(**order).as_environment()

    async def wait_ready(self) -> dict[str, Any]:
        """What the launcher says once it serves; KernelConnectionFailed where all has ended. The caller bounds the wait."""
        if self._ready is None:
            raise KernelConnectionFailed("it was ended before it served")
        # One of its own: whoever ends the kernel meanwhile closes the other, whose number is then another file's.
        ready, loop = os.dup(self._ready), asyncio.get_running_loop()
        said, line = asyncio.Event(), bytearray()

        def on_readable() -> None:
            with suppress(BlockingIOError):
                line.extend(chunk := os.read(ready, _LINE_BYTES))
                if not chunk or b"\n" in line or len(line) >= _LINE_BYTES:
                    loop.remove_reader(ready)
                    said.set()

        loop.add_reader(ready, on_readable)
        try:
            await said.wait()
        finally:
            loop.remove_reader(ready)
            os.close(ready)
        with suppress(ValueError, TypeError, RecursionError):
            return dict(json.loads(bytes(line)))
        return {}

    def _encrypted(self, prefix: Path, address: str | None, ports: Mapping[str, int]) -> Connection:
        server_key = z85.decode(self._told["curve_publickey"])
        return Connection(prefix, self._told["key"].encode(), address, ports, server_key)

    def _write(self, content: Mapping[str, Any]) -> None:
        create_file(self.connection_file, json.dumps(content).encode(), mode=0o600)

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return the end of a file that the kernel may have written; empty if it is not a regular file."""
        with suppress(OSError):
            return read_regular(self.path / name, limit_bytes, tail=True)
        return b""

    def clear(self) -> bool:
        """Close the pipes, and remove what is in the directory; whether it is as it was when it was made."""
        self._let_go()
        try:
            fd = os.open(self.path, DIRECTORY)
        except OSError:
            return False
        try:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            return mode in (_OWN, _SHARED) and clear(fd)
        except OSError:
            return False
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Close the pipes and remove the directory with all that is in it."""
        self._let_go()
        remove_tree(self.path)

    def _let_go(self) -> None:
        for fd in (self._ready, self._owner):
            if fd is not None:
                let_go(fd)
        self._ready = self._owner = None
        if self._called.is_symlink():
            self._called.unlink()
