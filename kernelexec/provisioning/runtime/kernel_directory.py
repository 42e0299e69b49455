"""A kernel's private directory: sockets, connection file, and two pipes, for readiness and for the owner's life.

The directory belongs to this user (0700), but the kernel can write there too: files are read without following links, must
be regular, and are limited in size. The directory of a branch is inside the first kernel's directory, and that kernel can put
a link or another directory in the branch's place. So every access goes through an open directory, the same each time.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.launcher.protocol import CHECKPOINT_SOCKET, LaunchOptions
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.owned_directory import SOCKET_PATH_BYTES, close_fd, track_fd
from kernelexec.provisioning.runtime.ports import find_free_ports
from kernelexec.provisioning.runtime.unix_sockets import list_checkpoints
from kernelexec.workspace.rmtree import CALL_SECONDS, ENTRIES_MAX, clear, names_in
from kernelexec.workspace.safe_files import DIRECTORY, closing_fd, create_file, open_regular, read_regular

Transport = Literal["ipc", "tcp", "bridged", "relayed"]
"""Unix sockets; loopback ports; loopback ports behind unix sockets that the guard serves; or unix sockets of ours, whose
connections a relay carries to the kernel's own."""

# <root>/<session>/<number>/      a directory; a link to the directory of an earlier kernel with the same container or memory
#     connection.json, stderr     created by the owner; the kernel reads the first and appends to the second
#     stacks, words               the kernel's: stacks of all threads, and the crash buffer
#     s-1 ... s-5                 sockets of the channels: the kernel's, its guard's or its relay's
#     c-<number>                  sockets of checkpoints
#     w                           socket of the owner, to which a container's init connects
#     ready                       FIFO: one line of JSON once the kernel serves
#     owner                       FIFO without content: a reader sees the death of the owner, the last writer, as its end
#     secrets                     FIFO, only while the guard of another project's kernel starts
#     b1/ ... b9999/              directories of branches
#: Numbers of the channels in the names of unix sockets.
PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
#: How long a kernel waits for another program of its relay at least, in seconds, and how long one is tried: the engine may be
#: restarted.
RELAY_SECONDS = 60.0
#: Files of one kernel process.
_CONNECTION_FILE = "connection.json"
_STDERR_FILE = "stderr"
_FILES = (_CONNECTION_FILE, _STDERR_FILE, "stacks", "words")
_LINE_BYTES, _PIPE_BYTES = 4096, 1024 * 1024
#: The names of branches' directories in that of the first kernel, and their numbers.
_BRANCH, _BRANCH_NUMBERS = re.compile(r"b[0-9]+"), range(1, 10_000)
#: The modes of the directory: of a kernel that runs as this user, and as another.
_OWN, _SHARED = 0o700, 0o1770


@dataclass(frozen=True, slots=True)
class Connection:
    """The addresses of a kernel's sockets and the key that signs messages.

    The paths of unix sockets begin with ``prefix``; a kernel without unix sockets has ports of a loopback ``address``.
    """

    prefix: Path
    key: bytes
    address: str | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    uid: int = field(default_factory=platform.user_id)
    """User id of the sockets' owner."""

    def path(self, channel: str) -> Path:
        """Return the path of a channel's socket: shell, iopub, stdin, control or hb."""
        return self.prefix.with_name(f"{self.prefix.name}-{PORTS[channel + '_port']}")

    def port(self, channel: str) -> int:
        """Return the port of a channel of a kernel with an ``address``."""
        return self.ports[f"{channel}_port"]


class RuntimeDirectory:
    """The private directory of a kernel process."""

    def __init__(self, path: Path, reused: RuntimeDirectory | None = None, *, within: Path | None = None) -> None:
        """Take the kernel's number in the session from the name of ``path``; a ``reused`` directory gets a link of that name.

        The directory of a branch has that name ``within`` another kernel's directory. Links there are not followed, since the
        kernel may have made them.
        """
        self._name_path, self._reused = path, reused
        self.path: Path
        if reused is not None:
            self.path = reused.path
        elif within is not None:
            self.path = within / path.name
        else:
            self.path = path.parent / path.readlink() if path.is_symlink() else path
        self.status: os.stat_result | None = None if reused is None else reused.status
        """The status of the directory when it was opened first."""
        self._bridge: dict[str, Any] | None = None
        self._ready: int | None = None
        self._owner: int | None = None
        self._relayed_content: dict[str, Any] | None = None

    @property
    def epoch(self) -> int:
        """Number of the kernel in its session."""
        return int(self._name_path.name)

    @property
    def connection_file(self) -> Path:
        """The connection file for Jupyter clients."""
        return self.path / _CONNECTION_FILE

    @property
    def session(self) -> Path:
        """The session's private directory, which kernels do not see."""
        return self._name_path.parent

    @property
    def is_of_branch(self) -> bool:
        """Whether the directory is inside the directory of another session's kernel, because this kernel is a branch."""
        return self.path.parent != self._name_path.parent

    @property
    def place(self) -> Path:
        """The directory visible to this kernel and all related branches, with the branches' directories inside."""
        return self.path.parent if self.is_of_branch else self.path

    @contextmanager
    def _open(self) -> Iterator[int]:
        """Open the directory; raise ``OSError`` if replaced by a link or another directory since the first time."""
        with closing_fd(os.open(self.path, DIRECTORY)) as directory:
            self.status = self.status or os.fstat(directory)
            if not os.path.samestat(self.status, os.fstat(directory)):
                raise OSError(errno.ESTALE, "another directory has taken its place", str(self.path))
            yield directory

    def add_branch(self, user: tuple[int, int] | None = None) -> RuntimeDirectory:
        """Create the private directory and the owner pipe of a branch, at a path visible to this kernel's processes.

        ``user`` is the user and group of the kernel, if possibly different from the caller's.

        Raises:
            OSError: the directory cannot be created.
        """
        with closing_fd(os.open(self.place, DIRECTORY)) as above:
            for name in (f"b{number}" for number in _BRANCH_NUMBERS):
                with suppress(FileExistsError):
                    os.mkdir(name, _OWN, dir_fd=above)
                    break
            else:
                raise FileExistsError(errno.EEXIST, "all names of branches are taken", str(self.place))
        branch = RuntimeDirectory(self.session / name, within=self.place)
        try:
            with branch._open() as directory:  # pins the new directory before any process of the branch exists
                branch._owner = track_fd(_make_pipe("owner", os.O_RDWR, directory))
                if user is not None and user[0] != os.getuid():
                    _share(user[1], {branch._owner: 0o640, directory: _SHARED})
        except BaseException:
            branch.remove()
            raise
        return branch

    def create(
        self,
        transport: Transport = "ipc",
        name: str = "kernelexec",
        *,
        key: str | None = None,
        scheme: str = "hmac-sha256",
        user: tuple[int, int] | None = None,
    ) -> Connection:
        """Create the directory, the connection file of a kernel named ``name``, and the pipes.

        Messages are signed with ``key``, or with a new key. For a kernel of another user the directory is shared with that
        user's group: the kernel can create files there, but can neither replace nor change ours. A ``bridged`` kernel gets
        an address whose ports are free in any network. A ``relayed`` kernel cannot see the directory: the sockets here belong
        to the relay, and the kernel's sockets are in another directory of the same path, inside the container.

        Raises:
            KernelStartFailed: the path is too long for unix sockets, no port of a loopback address is free, or the directory
                cannot be shared with that user.
        """
        prefix = self.path / "s"
        if len(os.fsencode(prefix)) + 2 > SOCKET_PATH_BYTES:
            message = (
                f"{prefix}: a socket's path must have at most {SOCKET_PATH_BYTES} bytes; shorten XDG_RUNTIME_DIR or TMPDIR."
            )
            raise KernelStartFailed(message)
        if self._reused is not None:
            self._name_path.symlink_to(self.path if self.is_of_branch else self.path.name)
        else:
            self.path.mkdir(mode=_OWN, parents=True)
        key = secrets.token_hex(32) if key is None else key
        uid, gid = user if user and transport != "relayed" else (os.getuid(), os.getgid())
        common = {"key": key, "signature_scheme": scheme, "kernel_name": name, "kernelexec_uid": uid}
        address, ports = (None, PORTS) if transport in ("ipc", "relayed") else find_free_ports(tuple(PORTS))
        content = {"transport": "tcp" if address else "ipc", "ip": address or str(prefix), **ports, **common}
        if transport == "relayed":
            self._relayed_content = content
        with self._open() as directory:
            _write(Path(_CONNECTION_FILE), content, directory)
            self._ready = _make_pipe("ready", os.O_RDONLY, directory)
            # Checkpoints of the kernel before read the same pipe: a moment without a writer would be its owner's death.
            self._owner = None if self._reused is None else self._reused.take_owner_pipe()
            if self._owner is None:
                # O_RDWR: opening a FIFO for writing only fails (ENXIO) while the kernel does not have it open yet.
                self._owner = track_fd(_make_pipe("owner", os.O_RDWR, directory))
            if uid != os.getuid():
                self._share_with(uid, gid, directory)
        if transport != "bridged":
            return Connection(prefix, key.encode(), address, ports, uid=uid)
        self._bridge = {"address": address, "sockets": {f"{prefix}-{PORTS[name]}": port for name, port in ports.items()}}
        return Connection(prefix, key.encode(), uid=uid)

    def _share_with(self, uid: int, gid: int, directory: int) -> None:
        assert self._ready is not None
        assert self._owner is not None
        try:
            with closing_fd(open_regular(_CONNECTION_FILE, dir_fd=directory)) as file:
                _share(gid, {file: 0o640, self._ready: 0o620, self._owner: 0o640, directory: _SHARED})
        except OSError as exc:
            message = f"container.user: only root can start kernels of {uid}:{gid} ({exc.strerror}). Leave the option out."
            raise KernelStartFailed(message) from exc

    def take_over(self, *, is_relayed: bool = False) -> Connection | None:
        """Become the owner of a waiting kernel, which looks for an owner every 0.5 s; None if no kernel waits.

        ``is_relayed`` comes from the former owner, not from files here: a kernel with access to the directory can write
        any file.
        """
        connection = self.read_connection()
        if is_relayed:
            self._relayed_content = {}
            return connection
        try:
            with self._open() as directory:
                # Write only, unlike in ``create``: the open fails (ENXIO) if no kernel is left that reads the pipe.
                self._owner = track_fd(_open_pipe("owner", os.O_WRONLY, directory))
        except OSError:
            return None
        return connection

    @property
    def is_relayed(self) -> bool:
        """Whether a relay carries the connections, because the kernel cannot see the directory."""
        return self._relayed_content is not None

    def read_connection(self) -> Connection | None:
        """Return the connection of a kernel started by another process; None if the connection file cannot be read."""
        with suppress(OSError, ValueError, RecursionError, TypeError, LookupError, OverflowError):
            content = json.loads(self.read_file(_CONNECTION_FILE, _LINE_BYTES))
            key, uid = str.encode(content["key"]), content.get("kernelexec_uid", os.getuid())
            if isinstance(uid, int):
                return Connection(self.path / "s", key, uid=uid)
        return None

    def launch_environment(
        self,
        token: str,
        limits: dict[str, int],
        *,
        patience: float = 0.0,
        tape_bytes: int = 0,
        **extra: object,
    ) -> dict[str, str]:
        """Return the launcher's options as environment variables.

        ``patience`` is the kernel's wait for a new owner, in seconds; ``tape_bytes`` limits the output kept during the
        wait. ``extra`` options are added.
        """
        own: dict[str, Any] = {name: str(self.path / name) for name in ("ready", "owner")}
        own |= {"scratch": str(self.path), "grace_seconds": patience, "replay_bytes": tape_bytes}
        if self.is_relayed:  # its crashes are in the engine's log
            own |= {"connection": self._relayed_content, "grace_seconds": max(patience, RELAY_SECONDS)}
        else:
            own |= {"stacks": str(self.path / "stacks"), "crash_buffer": str(self.path / "words"), "unix_proxy": self._bridge}
        own |= extra
        return LaunchOptions(token=token, limits=limits, **own).as_environment()

    async def wait_ready(self) -> dict[str, Any]:
        """Wait for the launcher's readiness report and return the content; the caller bounds the wait.

        Returns an empty report if the kernel wrote anything else.

        Raises:
            KernelConnectionFailed: the kernel was ended before.
        """
        if self._ready is None:
            raise KernelConnectionFailed("it was ended before it served")
        # A duplicate: the end of the kernel closes the original, whose number another file may get.
        ready, loop = os.dup(self._ready), asyncio.get_running_loop()
        is_complete, line = asyncio.Event(), bytearray()

        def on_readable() -> None:
            with suppress(BlockingIOError):
                # An untrusted process may write the line in pieces or never end it: so the bound.
                line.extend(chunk := os.read(ready, _LINE_BYTES))
                if not chunk or b"\n" in line or len(line) >= _LINE_BYTES:
                    loop.remove_reader(ready)
                    is_complete.set()

        loop.add_reader(ready, on_readable)
        try:
            await is_complete.wait()
        finally:
            loop.remove_reader(ready)
            os.close(ready)
        with suppress(ValueError, TypeError, RecursionError):
            return dict(json.loads(bytes(line)))
        return {}

    @contextmanager
    def secret_pipe(self, values: Mapping[str, str], user: tuple[int, int] | None) -> Iterator[str | None]:
        """Open a pipe of secrets for a guard, so that no file holds them; yield the path, or None without secrets.

        The pipe is removed afterwards. ``user`` is the user and group of the kernel, if possibly different from the caller's.

        Raises:
            KernelStartFailed: the secrets are too large for a pipe (1 MiB).
        """
        if not values:
            yield None
            return
        data = json.dumps(values).encode() + b"\n"
        with self._open() as directory, closing_fd(_make_pipe(name := "secrets", os.O_RDWR, directory)) as pipe:
            try:
                if user is not None and user[0] != os.getuid():
                    _share(user[1], {pipe: 0o640})
                # All is written before the guard reads: with a smaller pipe the rest would have to wait in a task or thread.
                if len(data) <= _PIPE_BYTES:
                    platform.grow_pipe(pipe, len(data))
                if len(data) > _PIPE_BYTES or os.write(pipe, data) < len(data):
                    message = (
                        f"All secrets together take {len(data)} bytes, the limit is {_PIPE_BYTES}: use fewer or shorter ones."
                    )
                    raise KernelStartFailed(message)
                yield str(self.path / name)
            finally:
                _unlink(name, directory)

    def read_file(self, name: str, limit_bytes: int) -> bytes:
        """Return the last ``limit_bytes`` of a file, which the kernel may have written; empty if not a regular file."""
        with suppress(OSError), self._open() as directory:
            return read_regular(name, limit_bytes, dir_fd=directory, tail=True)
        return b""

    def create_stderr(self) -> BinaryIO:
        """Create the file of the kernel's stderr, opened for appending.

        Raises:
            OSError: the file cannot be created, or another file has the name.
        """
        with self._open() as directory:

            def create(_: str, flags: int) -> int:
                return os.open(_STDERR_FILE, flags | os.O_EXCL, 0o600, dir_fd=directory)

            return open(self.path / _STDERR_FILE, "ab", opener=create)

    def take_owner_pipe(self) -> int | None:
        """Give away the open owner pipe, which checkpoints read too; None if already given away or closed."""
        owner, self._owner = self._owner, None
        return owner

    def put_owner_pipe(self, owner: int | None) -> None:
        """Take back the open owner pipe from the directory of a kernel that did not start."""
        self._owner = self._owner if owner is None else owner

    def clear_for_checkpoint(self, kept: Collection[int]) -> bool:
        """Remove an ended kernel's sockets, pipes and files for a kernel with the same memory; return whether all are gone.

        ``kept`` checkpoints, the owner pipe, and files of libraries stay.
        """
        owner, self._owner = self._owner, None
        self._close_pipes()
        self._owner = owner
        try:
            names = ["ready", "secrets", *_FILES, *(f"s-{number}" for number in PORTS.values())]
            names += [f"{CHECKPOINT_SOCKET}{number}" for number in list_checkpoints(self.path) if number not in kept]
            with self._open() as directory:
                for name in names:
                    _unlink(name, directory)
        except OSError:
            return False
        return True

    def clear(self) -> bool:
        """Close the pipes and remove all content; return whether the directory is as new, which is never so with branches."""
        self._close_pipes()
        with suppress(OSError), self._open() as directory:
            mode = stat.S_IMODE(os.fstat(directory).st_mode)
            return mode in (_OWN, _SHARED) and _clear(directory)
        return False

    def remove(self) -> None:
        """Close the pipes and remove the directory with all content.

        If branches use the directory, or a cell goes on writing there, the directory stays until the session ends.
        """
        self._close_pipes()
        with suppress(OSError), self._open() as directory:
            _clear(directory)
            self.path.rmdir()  # fails while anything is left, and for a link in the place of a branch's directory

    def _close_pipes(self) -> None:
        for fd in (self._ready, self._owner):
            if fd is not None:
                close_fd(fd)
        self._ready = self._owner = None
        if self._name_path.is_symlink():
            self._name_path.unlink()


def write_ready(directory: Path, line: bytes) -> None:
    """Write a relayed kernel's readiness report into the ready pipe of a directory; raise ``OSError`` without a reader."""
    with closing_fd(os.open(directory, DIRECTORY)) as opened, closing_fd(_open_pipe("ready", os.O_WRONLY, opened)) as pipe:
        os.write(pipe, line)


def _clear(directory: int) -> bool:
    """Remove the content of an open directory, unless branches have directories there; return whether nothing is left.

    A kernel that creates a directory with a branch's name only keeps its own directory for longer.
    """
    has_branches = any(map(_BRANCH.fullmatch, names_in(directory, ENTRIES_MAX)))
    return not has_branches and clear(directory, most=ENTRIES_MAX, seconds=CALL_SECONDS)


def _write(path: Path, content: Mapping[str, Any], directory: int | None = None) -> None:
    create_file(path, json.dumps(content).encode(), mode=0o600, dir_fd=directory)


def _make_pipe(name: str, flags: int, directory: int) -> int:
    """Make and open a named pipe in an open directory."""
    os.mkfifo(name, 0o600, dir_fd=directory)
    return _open_pipe(name, flags, directory)


def _open_pipe(name: str, flags: int, directory: int) -> int:
    """Open a named pipe in an open directory; raise ``OSError`` for a link or any other file."""
    fd = os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "no pipe", name)


def _unlink(name: str, directory: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def _share(gid: int, modes: Mapping[int, int]) -> None:
    """Give open files to a group, with these modes."""
    # By descriptor: in the directory of a branch's first kernel, that kernel can put a link under any name.
    for fd, mode in modes.items():
        os.fchown(fd, -1, gid)
        os.fchmod(fd, mode)
