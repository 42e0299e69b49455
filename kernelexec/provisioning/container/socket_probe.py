"""The reachability of containers' unix sockets from here: by known facts, or by a probe container."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from kernelexec.config import Config, in_container
from kernelexec.docker.client import Engine, host
from kernelexec.docker.create_options import Order
from kernelexec.docker.engine_reports import Whereabouts
from kernelexec.errors import EngineFailed, EngineRefused
from kernelexec.provisioning import platform
from kernelexec.provisioning.container.container_backend import build_labels
from kernelexec.provisioning.container.containers import DirectoryNotShared, create_container
from kernelexec.provisioning.container.mounts import Bind
from kernelexec.workspace.rmtree import remove_tree

#: What a container and this machine share of a directory: sockets and files, files only, or nothing.
Reachability = Literal["sockets", "files", "nothing"]

_PROBE_SECONDS, _PAUSE_SECONDS = 20.0, 0.02
_WORD = b"here"
#: Exit codes of a container whose program cannot be run or is missing.
_NOT_RUN = frozenset({126, 127})
_FILE_PROGRAM = """
import os, sys
open(os.path.join(sys.argv[1], "file"), "w").close()
"""
_PROGRAM = f"""
{_FILE_PROGRAM}
import socket
path = os.path.join(sys.argv[1], "s")
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
    server.bind(path)
    os.chmod(path, 0o777)
    server.listen()
    server.settimeout({_PROBE_SECONDS})
    server.accept()[0].sendall({_WORD!r})
"""
#: Results by the address of the engine, and the engines for which only a probe counts.
_reachable: dict[str, bool] = {}
_distrusted: set[str] = set()
_lock = threading.Lock()


def are_sockets_reachable() -> bool:
    """Return whether sockets of the current engine's containers are reachable; True before the first check."""
    return _reachable.get(host(), True)


def probe_sockets(config: Config, root: Path, python: str, mounts: Sequence[Bind] = ()) -> bool:
    """Return whether sockets below ``root`` are reachable, checked once for each engine. For a thread.

    A probe runs a ``python`` of the image, or of ``mounts``.

    Raises:
        KernelStartFailed: the engine is on another machine without access to the files of this machine.
        EngineFailed: the probe failed.
    """
    with _lock:  # held during a probe: sessions that start together share its result
        address = host()
        is_reachable = _reachable.get(address)
        if is_reachable is None:
            can_guess = address not in _distrusted
            is_reachable = _reachable[address] = _decide(config, root, python, mounts, can_guess=can_guess)
        return is_reachable


def forget() -> None:
    """Forget all results after a kernel was not reached in time; from now on only a probe counts. Never waits for a probe."""
    _distrusted.update(_reachable)
    _reachable.clear()


def _decide(config: Config, root: Path, python: str, mounts: Sequence[Bind], *, can_guess: bool) -> bool:
    with Engine.acquire() as engine:
        where = Whereabouts.of(engine)
        program = _FILE_PROGRAM if where.remote else _PROGRAM  # the sockets of a remote engine are never used
        reachability = (guess(where, root) if can_guess else None) or probe(engine, config, root, python, mounts, program)
    if where.remote and reachability == "nothing":
        raise DirectoryNotShared(root)
    return reachability == "sockets" and not where.remote


def guess(where: Whereabouts, root: Path) -> Reachability | None:
    """Return the reachability known without a probe, or None.

    With the right to inspect the engine's process, ``root`` is compared in both processes. Without that right, an engine on the
    same machine is assumed to see the same directory, unless this process is in a container.
    """
    if where.remote:
        return None
    if not platform.PLATFORM.has_local_containers or where.system == "Docker Desktop":
        return "files"
    if not where.listener:
        return None
    try:
        # /proc/PID/root is the file system as that process sees it, with the mounts of its namespace.
        engine_status = Path(f"/proc/{where.listener}/root", *root.parts[1:]).stat()
    except PermissionError:
        this = os.uname()
        is_same_machine = (where.node, where.release) == (this.nodename, this.release)
        return "sockets" if is_same_machine and not in_container() else None
    except OSError:
        return None
    return "sockets" if os.path.samestat(engine_status, root.stat()) else None


def probe(
    engine: Engine, config: Config, root: Path, python: str, mounts: Sequence[Bind] = (), program: str | None = None
) -> Reachability:
    """Return the reachability of a directory below ``root``, tried with a throw-away container for at most 20 s.

    Raises:
        KernelStartFailed, EngineFailed: the container cannot be created.
        EngineRefused: the image has no such ``python``.
    """
    directory = Path(tempfile.mkdtemp(prefix="x", dir=root))
    try:
        directory.chmod(0o777)  # for a container with another user; ``root`` keeps other users out
        options = config.container
        order = Order(
            image="",
            command=(python, "-c", program or _PROGRAM, str(directory)),
            environment={},
            user="{}:{}".format(*options.ids),
            cwd="/",
            mounts=((str(directory), str(directory), False), *mounts),
            labels=build_labels(session="", workspace=root, root=root, runtime=directory),
            options=options,
        )
        with _run_container(engine, order) as container:
            deadline = time.monotonic() + _PROBE_SECONDS
            while time.monotonic() < deadline:
                state = engine.inspect_container(container)
                if _is_answering(directory / "s"):
                    return "sockets"
                if state.exit_code in _NOT_RUN and not state.running:
                    raise EngineRefused(f"A container that tries unix sockets cannot run {python}: {engine.logs(container)}")
                if not state.running:
                    break
                time.sleep(_PAUSE_SECONDS)  # in a thread: no event is certain to arrive
        return "files" if (directory / "file").exists() else "nothing"
    except DirectoryNotShared:
        return "nothing"
    finally:
        remove_tree(directory)


@contextmanager
def _run_container(engine: Engine, order: Order) -> Iterator[str]:
    container = create_container(engine, order, f"kernelexec-probe-{secrets.token_hex(4)}")
    try:
        engine.start(container)
        yield container
    finally:
        with suppress(EngineFailed):
            engine.remove(container)


def _is_answering(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        sock.connect(str(path))
        return sock.recv(len(_WORD)) == _WORD
    return False
