"""Whether the unix sockets of a container can be connected to from here. Where that is not plain, a container tries it."""

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
from kernelexec.docker.address import host
from kernelexec.docker.client import Engine
from kernelexec.docker.create_options import Order
from kernelexec.docker.location import Whereabouts
from kernelexec.errors import EngineFailed, EngineRefused, KernelStartFailed
from kernelexec.provisioning import platform
from kernelexec.provisioning.container.create import NotShared, make
from kernelexec.provisioning.container.mounts import Bind
from kernelexec.provisioning.owner_labels import labels_of
from kernelexec.workspace.rmtree import remove_tree

#: What of a directory crosses: sockets too, files only, or nothing.
Crossing = Literal["sockets", "files", "nothing"]

_TRIAL_SECONDS, _PAUSE_SECONDS = 20.0, 0.02
_WORD = b"here"
#: How the first process of a container says that a program cannot be run, or is not there.
_NOT_RUN = frozenset({126, 127})
_PROGRAM = f"""
import os, socket, sys
open(os.path.join(sys.argv[1], "file"), "w").close()
path = os.path.join(sys.argv[1], "s")
with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
    server.bind(path)
    os.chmod(path, 0o777)
    server.listen()
    server.settimeout({_TRIAL_SECONDS})
    server.accept()[0].sendall({_WORD!r})
"""
#: What is known of engines by the addresses at which they are asked, and those of which only a trial is believed.
_known: dict[str, bool] = {}
_doubted: set[str] = set()
_guard = threading.Lock()


def known_to_cross() -> bool:
    """Whether they do, as far as is known of the engine that is asked now: until something is, they are taken to."""
    return _known.get(host(), True)


def sockets_cross(config: Config, root: Path, python: str, mounts: Sequence[Bind] = ()) -> bool:
    """Whether they do, below ``root``; it is found out once for each engine. For a thread.

    A trial is made by a ``python`` of the image, or of one of the ``mounts``.

    Raises:
        KernelStartFailed: the engine is on another machine, of which nothing could be reached.
        EngineFailed: nobody knows.
    """
    with _guard:
        address = host()
        found = _known.get(address)
        if found is None:
            signs = address not in _doubted
            found = _known[address] = _found(config, root, python, mounts, believed=signs)
        return found


def doubt() -> None:
    """A kernel was not reached in time: what signs said counts no more. It waits for no trial."""
    _doubted.update(_known)
    _known.clear()


def _found(config: Config, root: Path, python: str, mounts: Sequence[Bind], *, believed: bool) -> bool:
    with Engine.acquire() as engine:
        where = Whereabouts.of(engine)
        crossing = (by_signs(where, root) if believed else None) or tried(engine, config, root, python, mounts)
    if where.remote and crossing == "nothing":
        raise NotShared(root)
    if where.remote and crossing == "files":
        message = f"Kernels of the container engine at {where.address} cannot be reached: unix sockets do not cross, and ports"
        raise KernelStartFailed(f"{message} are published on that machine only. Run kernelexec there.")
    return crossing == "sockets"


def by_signs(where: Whereabouts, root: Path) -> Crossing | None:
    """What is plain without a trial; None where nothing is.

    Who may look into the engine's process sees whether ``root`` is the same directory there. Who may not takes an engine
    on the same machine to see it, unless this process is in a container.
    """
    if where.remote:
        return None
    if not platform.HERE.own_containers or where.system == "Docker Desktop":
        return "files"
    if not where.listener:
        return None
    try:
        there = Path(f"/proc/{where.listener}/root", *root.parts[1:]).stat()
    except PermissionError:
        this = os.uname()
        same = (where.node, where.release) == (this.nodename, this.release)
        return "sockets" if same and not in_container() else None
    except OSError:
        return None
    return "sockets" if os.path.samestat(there, root.stat()) else None


def tried(engine: Engine, config: Config, root: Path, python: str, mounts: Sequence[Bind] = ()) -> Crossing:
    """What a throw-away container can bring about in a directory below ``root``.

    Raises:
        KernelStartFailed, EngineFailed: it cannot be made.
        EngineRefused: it has no such ``python``.
    """
    place = Path(tempfile.mkdtemp(prefix="x", dir=root))
    try:
        place.chmod(0o777)  # the container's user may be another; ``root`` lets nobody else in
        with _running(engine, _order(config, root, place, python, mounts)) as container:
            deadline = time.monotonic() + _TRIAL_SECONDS
            while time.monotonic() < deadline:
                seen = engine.inspect_container(container)
                if _answers(place / "s"):
                    return "sockets"
                if seen.exit_code in _NOT_RUN and not seen.running:
                    raise EngineRefused(f"A container that tries unix sockets cannot run {python}: {engine.logs(container)}")
                if not seen.running:
                    break
                time.sleep(_PAUSE_SECONDS)  # in a thread: nothing that crosses for sure would tell
        return "files" if (place / "file").exists() else "nothing"
    except NotShared:
        return "nothing"
    finally:
        remove_tree(place)


def _order(config: Config, root: Path, place: Path, python: str, mounts: Sequence[Bind]) -> Order:
    options = config.container
    return Order(
        image="",
        command=(python, "-c", _PROGRAM, str(place)),
        environment={},
        user="{}:{}".format(*options.ids),
        cwd="/",
        mounts=((str(place), str(place), False), *mounts),
        labels=labels_of(session="", workspace=root, root=root, runtime=place),
        options=options,
    )


@contextmanager
def _running(engine: Engine, order: Order) -> Iterator[str]:
    container = make(engine, order, f"kernelexec-trial-{secrets.token_hex(4)}")
    try:
        engine.start(container)
        yield container
    finally:
        with suppress(EngineFailed):
            engine.remove(container)


def _answers(path: Path) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(1.0)
        sock.connect(str(path))
        return sock.recv(len(_WORD)) == _WORD
    return False
