"""The connection between a launcher process and its owner: readiness, secrets, questions, and the end when the owner ends."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from . import platform
from .protocol import LaunchOptions, ReadyMessage

#: Seconds between two looks for a new owner, without an owner.
_LOOK_SECONDS = 0.5
_PIECE_BYTES = 64 * 1024
#: Set unless this kernel goes on without an owner.
has_owner = threading.Event()
has_owner.set()
#: Whether a cell of the kernel forked this process, so it is no kernel. Read in every write, where a system call is too slow.
is_forked_child = False


def take_secrets(options: LaunchOptions) -> dict[str, str]:
    """Read, once, the variables that the owner passes to the kernel only."""
    if options.secrets is None:
        return {}
    with open(options.secrets, "rb", buffering=0) as pipe:  # noqa: PTH123 - read as it is
        content = b""
        while not content.endswith(b"\n") and (piece := pipe.read(_PIECE_BYTES)):
            content += piece
    variables: dict[str, str] = json.loads(content)
    return variables


def prepare_for_relay(options: LaunchOptions, arguments: list[str]) -> None:
    """Write the connection file of a kernel in a directory that its owner cannot see, and the other files for its relay."""
    if options.connection is None or options.owner is None or options.ready is None:
        return
    os.mkfifo(options.owner, 0o600)
    for path, content in ((options.ready, ""), (arguments[arguments.index("-f") + 1], json.dumps(options.connection))):
        with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)


def apply_limits(limits: dict[str, int]) -> None:
    """Lower resource limits of this process and its children; core dumps are off by default."""
    for name, value in {"core": 0, **limits}.items():
        platform.lower_limit(name, value)


def write_stacks_to(path: str | None) -> None:
    """Write every thread's stack on a signal and on a crash, from C: also while the interpreter's lock is held.

    Without a ``path`` they go to the present stderr of this process; cells get another one.
    """
    file = os.fdopen(os.dup(2), "w") if path is None else Path(path).open("a")  # noqa: SIM115 - for the process's life
    faulthandler.enable(file=file)
    if platform.PLATFORM.stacks_signal is not None:
        faulthandler.register(platform.PLATFORM.stacks_signal, file=file, all_threads=True, chain=False)


def notify_ready(options: LaunchOptions, confinement: dict[str, list[str]]) -> None:
    """Write the ``ReadyMessage`` into the owner's FIFO."""
    if options.ready is None:
        return
    message: ReadyMessage = {
        "pid": os.getpid(),
        "token": options.token,
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "confinement": confinement,
    }
    with suppress(OSError):
        fd = os.open(options.ready, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, json.dumps(message).encode() + b"\n")
        finally:
            os.close(fd)


class OwnerPipe:
    """A FIFO that the owner holds open for writing while it lives. For ``grace_seconds`` after its end another may come."""

    def __init__(self, path: str, grace_seconds: float) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self.fd, True)
        self._grace_seconds = grace_seconds

    def has_writer(self) -> bool:
        """Return whether an owner holds the FIFO; ``poll`` reports no end to a reader that came after it."""
        os.set_blocking(self.fd, False)
        try:
            return bool(os.read(self.fd, 1))
        except BlockingIOError:
            return True
        finally:
            os.set_blocking(self.fd, True)

    def wait(self) -> bool:
        """Block until the FIFO is written to, or has no writer; return False if no new owner has come in time."""
        return bool(os.read(self.fd, 1)) or self._wait_for_owner()

    def close(self) -> None:
        """Close it: this process has another one."""
        os.close(self.fd)

    def _wait_for_owner(self) -> bool:
        """Return whether the FIFO gets a writer in time.

        It is read, not polled: poll reports no hangup of a FIFO that had no writer since it was opened here.
        """
        deadline = time.monotonic() + self._grace_seconds
        has_owner.clear()
        os.set_blocking(self.fd, False)
        try:
            while (left := deadline - time.monotonic()) > 0:
                if os.read(self.fd, 1):
                    return True
                time.sleep(min(_LOOK_SECONDS, left))  # the system reports no opening of a pipe; polled only without an owner
        except BlockingIOError:
            return True
        finally:
            os.set_blocking(self.fd, True)
        return False


def exit_with_owner(path: str, cleanup: Callable[[], None], *, grace_seconds: float = 0.0) -> None:
    """End this process and its group when the owner's FIFO has no writer left; ``cleanup`` runs first.

    A thread blocks in ``read``, so no timer is needed, and the parent's id does not matter. For ``grace_seconds`` after its
    owner's end the process goes on: a process that opens the FIFO meanwhile is its new owner.
    """
    pipe = OwnerPipe(path, grace_seconds)

    def watch() -> None:
        with suppress(OSError):
            while pipe.wait():
                has_owner.set()
        _end(cleanup)

    threading.Thread(target=watch, name="owner", daemon=True).start()


def track_forks() -> None:
    """Set ``is_forked_child`` in forked children of this process."""

    def set_flag() -> None:
        global is_forked_child  # noqa: PLW0603 - see there
        is_forked_child = True

    os.register_at_fork(after_in_child=set_flag)


def become_kernel() -> None:
    """Note that this process, which was forked from a kernel, is a kernel from now on."""
    global is_forked_child  # noqa: PLW0603 - see there
    is_forked_child = False
    has_owner.set()


class OwnerQuestions:
    """Questions of cells to the owner: ``ask`` sends one and waits for ``answer`` or an interrupt."""

    def __init__(self, send: Callable[[dict[str, Any]], Any], patience_seconds: float | None = None) -> None:
        self._send, self._patience_seconds = send, patience_seconds
        self._waiting: dict[str, SimpleQueue[Mapping[str, Any]]] = {}

    def ask(self, question: dict[str, Any]) -> Mapping[str, Any] | None:
        """Ask the owner and return the answer, None if an owner that was there all the time sends none."""
        name, answers = os.urandom(8).hex(), SimpleQueue[Mapping[str, Any]]()
        self._waiting[name] = answers
        try:
            self._send({**question, "name": name})
            while True:
                had_owner = has_owner.is_set()
                with suppress(Empty):
                    return answers.get(timeout=self._patience_seconds)
                if had_owner and has_owner.is_set():  # otherwise the question waits for the next owner, or for its answer
                    return None
        finally:
            del self._waiting[name]

    def forget(self) -> None:
        """Forget the questions, in a copy of the process that has asked them."""
        self._waiting.clear()

    def answer(self, answer: Mapping[str, Any]) -> None:
        """Take the answer to the question of its ``name``."""
        answers = self._waiting.get(str(answer.get("name")))
        if answers is not None:
            answers.put(answer)


def _end(cleanup: Callable[[], None]) -> None:
    with suppress(Exception):
        cleanup()
    if platform.leads_group():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
