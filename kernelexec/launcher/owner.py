"""The connection of a launcher process with the owner: readiness, secrets, questions, and an end after the owner's.

An audit hook asks the owner about each program before user code starts the program. Programs started by C code or by a forked
child are not seen. The shell announces a command by ``audit``, and starts the program ``exempt``.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from . import platform
from .protocol import LaunchOptions, ReadyMessage

#: Seconds between two looks for a new owner, without an owner.
_LOOK_SECONDS = 0.5
_PIECE_BYTES = 64 * 1024
#: Seconds for the owner's answer about a program: its event loop may be busy. Without an answer the program does not start.
_ANSWER_SECONDS = 120.0
#: Limits of a command; a longer one does not start.
_WORDS, _CHARS = 10_000, 4 * 1024 * 1024
_COMMAND = "kernelexec.command"
_thread_state = threading.local()
#: Set unless this kernel goes on without an owner.
has_owner = threading.Event()
has_owner.set()
#: Whether a cell of the kernel forked this process, so it is no kernel. Read in every write, where a system call is too slow.
is_forked_child = False


def take_secrets(options: LaunchOptions) -> dict[str, str]:
    """Read, once, the variables passed by the owner to the kernel only."""
    if options.secrets is None:
        return {}
    with open(options.secrets, "rb", buffering=0) as pipe:  # noqa: PTH123 - read as it is
        content = b""
        while not content.endswith(b"\n") and (piece := pipe.read(_PIECE_BYTES)):
            content += piece
    variables: dict[str, str] = json.loads(content)
    return variables


def prepare_for_relay(options: LaunchOptions, arguments: list[str]) -> None:
    """Write the connection file of a kernel in a directory hidden from the owner, and the other files for the relay."""
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
    """Write every thread's stack on a signal and on a crash, from C, so also while the interpreter's lock is held.

    Without a ``path`` the stacks go to the present stderr of this process; cells get another stderr.
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
        # Non-blocking: without a reader, as after the owner's death, the opening fails at once instead of waiting for one.
        fd = os.open(options.ready, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(fd, json.dumps(message).encode() + b"\n")
        finally:
            os.close(fd)


class OwnerPipe:
    """A FIFO held open for writing by the living owner. For ``grace_seconds`` after the owner's end another may come."""

    def __init__(self, path: str, grace_seconds: float) -> None:
        # A blocking opening would wait for a writer; only the reads later are to block.
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self.fd, True)
        self._grace_seconds = grace_seconds

    def has_writer(self) -> bool:
        """Return whether an owner holds the FIFO; ``poll`` does not report an end before the opening here."""
        os.set_blocking(self.fd, False)
        try:
            return bool(os.read(self.fd, 1))
        except BlockingIOError:
            return True
        finally:
            os.set_blocking(self.fd, True)

    def wait(self) -> bool:
        """Block until the FIFO is written to, or has no writer; return False if no new owner comes in time."""
        return bool(os.read(self.fd, 1)) or self._wait_for_owner()

    def close(self) -> None:
        """Close the FIFO, in a process with a FIFO of its own."""
        os.close(self.fd)

    def _wait_for_owner(self) -> bool:
        """Return whether the FIFO gets a writer in time.

        The FIFO is read, not polled: poll reports no hangup of a FIFO without any writer since the opening here.
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

    A thread blocks in ``read``, so no timer is needed, and the parent's id does not matter. The process goes on for
    ``grace_seconds`` after the owner's end: a process opening the FIFO meanwhile becomes the new owner.
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
    """Mark this process, a fork of a kernel, as a kernel."""
    global is_forked_child  # noqa: PLW0603 - see there
    is_forked_child = False
    has_owner.set()


class OwnerQuestions:
    """Questions of cells to the owner: ``ask`` sends a question and waits for ``answer`` or an interrupt."""

    def __init__(self, send: Callable[[dict[str, Any]], Any], patience_seconds: float | None = None) -> None:
        self._send, self._patience_seconds = send, patience_seconds
        self._waiting: dict[str, SimpleQueue[Mapping[str, Any]]] = {}

    def ask(self, question: dict[str, Any]) -> Mapping[str, Any] | None:
        """Ask the owner and return the answer; None if an owner is there and does not answer in time.

        Without an owner at the beginning or the end of that time, the question waits on.
        """
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
        """Forget the questions, in a copy of the asking process."""
        self._waiting.clear()

    def answer(self, answer: Mapping[str, Any]) -> None:
        """Take the answer to the question of the same ``name``; ignore unknown names."""
        answers = self._waiting.get(str(answer.get("name")))
        if answers is not None:
            answers.put(answer)


def _end(cleanup: Callable[[], None]) -> None:
    with suppress(Exception):
        cleanup()
    if platform.leads_group():
        os.killpg(os.getpid(), signal.SIGKILL)  # includes this process
    os._exit(1)


class ExecAudit:
    """The audit hook: sends a question before each program, and waits for the answer."""

    def __init__(self, send: Callable[[dict[str, Any]], Any]) -> None:
        # Exempt: the hook must not ask about itself, should sending raise one of these events.
        self.questions = OwnerQuestions(exempt()(send), _ANSWER_SECONDS)

    def install(self) -> None:
        """Add the audit hook, for the life of this process: Python cannot remove a hook."""
        sys.addaudithook(self._handle_event)

    def _handle_event(self, event: str, args: tuple[Any, ...]) -> None:
        parse = _EVENTS.get(event)
        if parse is None or is_forked_child or getattr(_thread_state, "trusted", False):
            return
        program = parse(args)
        texts = [program["text"]] if "text" in program else program["words"]
        if len(texts) > _WORDS or sum(map(len, texts)) > _CHARS:
            raise PermissionError(
                f"The command is longer than {_CHARS} characters or {_WORDS} words: write it to a file and run the file."
            )
        answer = self.questions.ask(program)
        if answer is None:
            raise PermissionError(f"the kernel's owner did not answer within {_ANSWER_SECONDS:g} s")
        if isinstance(answer.get("refused"), str):
            raise PermissionError(answer["refused"])


def audit(command: str | list[str]) -> None:
    """Announce a command, as text for a shell or as words, before it runs; raise PermissionError if the owner refuses."""
    sys.audit(_COMMAND, command)


@contextmanager
def exempt() -> Iterator[None]:
    """Exempt the programs started by this thread within the block: the kernel's own, and checked programs."""
    before, _thread_state.trusted = getattr(_thread_state, "trusted", False), True
    try:
        yield
    finally:
        _thread_state.trusted = before


def _parse_text(command: Any) -> dict[str, Any]:
    return {"text": _decode(command)}


def _parse_words(program: Any, words: Any) -> dict[str, Any]:
    decoded = [_decode(word) for word in (words if isinstance(words, list | tuple) else [words])]
    if program is not None and decoded and os.path.basename(_decode(program)) != os.path.basename(decoded[0]):  # noqa: PTH119
        decoded = [_decode(program), *decoded[1:]]  # the program that runs, whatever its argument 0
    return {"words": decoded}


def _decode(word: Any) -> str:
    try:
        return os.fsdecode(word)
    except (TypeError, ValueError):
        return str(word)


_EVENTS: dict[str, Callable[[tuple[Any, ...]], dict[str, Any]]] = {
    "os.system": lambda args: _parse_text(args[0]),
    "subprocess.Popen": lambda args: _parse_words(args[0], args[1]),
    "os.exec": lambda args: _parse_words(args[0], args[1]),
    "os.posix_spawn": lambda args: _parse_words(args[0], args[1]),
    "pty.spawn": lambda args: _parse_words(None, args[0]),
    _COMMAND: lambda args: _parse_text(args[0]) if isinstance(args[0], str) else _parse_words(None, args[0]),
}
