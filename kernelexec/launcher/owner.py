"""What ties a kernel to its owner: the order it was started with, the word that it serves, and its end when the owner dies."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import platform

ORDER = "KERNELEXEC_LAUNCH"
#: How often a kernel without an owner looks for a new one, in seconds.
_LOOK_SECONDS = 0.5
_PIECE_BYTES = 64 * 1024
#: Not set while this kernel goes on without an owner.
owned = threading.Event()
owned.set()


@dataclass(frozen=True)
class Order:
    """What the owner asked for; everything is optional, so that the launcher serves any Jupyter client.

    An owner whose files cannot be seen from here gives the ``connection`` itself and, for its pipes, a lease.
    """

    ready: str | None = None
    owner: str | None = None
    stacks: str | None = None
    words: str | None = None
    scratch: str | None = None
    connection: dict[str, Any] | None = None
    lease_seconds: float | None = None
    token: str = ""
    bridge: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    confinement: dict[str, Any] | None = None
    confined: dict[str, list[str]] | None = None
    """How this process is confined already."""
    judged: bool = False
    """Whether the owner is asked about programs before user code starts them."""
    programs: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that count once this process is confined: what a program is loaded from."""
    cwd: str | None = None
    """Where it is at home from then on."""
    secrets: str | None = None
    """A pipe that holds variables of the kernel, for its guard."""
    patience: float = 0.0
    """How long the kernel goes on without an owner, in seconds, for a new one that takes it over."""
    tape_bytes: int = 0
    """How much of the newest cell's text is kept for a new owner; of all else four times as much. 0 keeps nothing."""

    @classmethod
    def take(cls) -> Order:
        """Read the order from the environment and remove it: user code has no use for it."""
        said: dict[str, Any] = json.loads(os.environ.pop(ORDER, "{}"))
        return cls(**{name: said[name] for name in cls.__dataclass_fields__ if said.get(name) is not None})

    def settle(self) -> None:
        """Be at home, with all variables, now that this process is confined.

        Raises:
            OSError: there is no such directory, or it may not go there.
        """
        os.environ.update(self.environment)
        if self.cwd is not None:
            os.chdir(self.cwd)


def take_secrets(order: Order) -> dict[str, str]:
    """The variables that the owner has for the kernel alone: they are read once."""
    if order.secrets is None:
        return {}
    with open(order.secrets, "rb", buffering=0) as pipe:  # noqa: PTH123 - read as it is
        said = b""
        while not said.endswith(b"\n") and (piece := pipe.read(_PIECE_BYTES)):
            said += piece
    found: dict[str, str] = json.loads(said)
    return found


@contextmanager
def connection_arguments(order: Order, arguments: list[str]) -> Iterator[list[str]]:
    """The arguments by which the kernel finds its connection file. One that is made of the order is gone afterwards."""
    if order.connection is None:
        yield arguments
        return
    with tempfile.TemporaryDirectory(prefix="connection-") as place:
        path = Path(place) / "connection.json"
        path.write_text(json.dumps(order.connection), encoding="utf-8")
        yield ["-f", str(path)]


def apply_limits(limits: dict[str, int]) -> None:
    """Lower resource limits for this process and its children; core dumps are off unless asked for."""
    for name, value in {"core": 0, **limits}.items():
        platform.lower_limit(name, value)


def write_stacks_to(path: str | None) -> None:
    """Have every thread's stack written on a signal, and on a crash: from C, so also while the interpreter's lock is held.

    Without a ``path`` they go to what is this process's stderr now: cells get another one.
    """
    file = os.fdopen(os.dup(2), "w") if path is None else Path(path).open("a")  # noqa: SIM115 - for the process's life
    faulthandler.enable(file=file)
    if platform.HERE.stacks is not None:
        faulthandler.register(platform.HERE.stacks, file=file, all_threads=True, chain=False)


def say_ready(order: Order, confined: dict[str, list[str]]) -> None:
    """Tell the owner, through its pipe, that the kernel serves, and how it is ``confined``."""
    if order.ready is None:
        return
    said = {"pid": os.getpid(), "token": order.token, "python": sys.version.split()[0], "executable": sys.executable}
    said["confinement"] = confined
    with suppress(OSError):
        fd = os.open(order.ready, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, json.dumps(said).encode() + b"\n")
        finally:
            os.close(fd)


def end_with_owner(path: str, before: Callable[[], None], *, patience: float = 0.0) -> None:
    """End this process, and its group, when nobody holds the owner's pipe open any more; ``before`` runs first.

    A thread blocks in ``read``: no timer, and it works wherever the pipe can be seen, whatever the parent's id is. For
    ``patience`` seconds after its owner's end the process goes on as it is: who opens the pipe meanwhile is its new owner.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(fd, True)

    def watch() -> None:
        with suppress(OSError):
            while os.read(fd, 1) or _owned_again(fd, patience):
                owned.set()
        _end(before)

    threading.Thread(target=watch, name="owner", daemon=True).start()


def _owned_again(fd: int, patience: float) -> bool:
    """Whether somebody opens a pipe for writing, that nobody has open, within ``patience`` seconds.

    It is read, not polled: of a pipe that nobody has had open for writing since it was opened here, no hangup is told.
    """
    deadline = time.monotonic() + patience
    owned.clear()
    os.set_blocking(fd, False)
    try:
        while (left := deadline - time.monotonic()) > 0:
            if os.read(fd, 1):
                return True
            time.sleep(min(_LOOK_SECONDS, left))  # nothing tells when somebody opens a pipe; only without an owner
    except BlockingIOError:
        return True
    finally:
        os.set_blocking(fd, True)
    return False


class Lease:
    """How long this process may go on without a word of its owner, for one whose pipe cannot be seen from here.

    A thread counts its own steps, not a clock: time in which nothing could be heard, because this process was stopped, the
    machine asleep or the interpreter's lock held in C code, does not count.
    """

    def __init__(self, seconds: float, before: Callable[[], None]) -> None:
        self._left = seconds
        self._step = min(1.0, seconds / 20)
        self._before = before
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def renew(self, seconds: float) -> None:
        """Begin a new one of that length."""
        self._step = min(1.0, seconds / 20)
        self._left = seconds

    def _watch(self) -> None:
        while self._left > 0:
            time.sleep(self._step)  # the step that is counted: see the class
            self._left -= self._step
        _end(self._before)


def _end(before: Callable[[], None]) -> None:
    with suppress(Exception):
        before()
    if platform.leads_group():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
