"""An audit hook by which the kernel's owner judges each program before user code starts it.

Programs that start past the interpreter are not seen, nor those of a forked child. The runner of commands announces a command
by ``audit`` and starts it ``exempt``.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import owner
from . import fork_flag

#: Seconds for the owner's answer: its event loop may be busy. Without an answer the program does not start.
_PATIENCE = 120.0
#: Limits of a command; a longer one does not start.
_WORDS, _CHARS = 10_000, 4 * 1024 * 1024

_COMMAND = "kernelexec.command"

_own = threading.local()


class ExecAudit:
    """The audit hook: it asks by ``ask`` before each program and waits for ``answer``."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any]) -> None:
        self._ask = ask
        self._waiting: dict[str, _Verdict] = {}

    def begin(self) -> None:
        """Add the audit hook, which Python never removes."""
        sys.addaudithook(self._heard)

    def answer(self, name: object, refused: object) -> None:
        """Take the owner's answer to the question of a name: a reason for a refusal, or None."""
        verdict = self._waiting.get(name) if isinstance(name, str) else None
        if verdict is not None:
            verdict.refused = refused if isinstance(refused, str) else None
            verdict.answered.set()

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        __tracebackhide__ = True
        read = _EVENTS.get(event)
        if read is None or fork_flag.forked or getattr(_own, "trusted", False):
            return
        program = read(args)
        texts = [program["text"]] if "text" in program else program["words"]
        if len(texts) > _WORDS or sum(map(len, texts)) > _CHARS:
            raise PermissionError(
                f"It is longer than {_CHARS} characters, or {_WORDS} words: put it into a file, and run that."
            )
        self._judge(program)

    def _judge(self, program: dict[str, Any]) -> None:
        """Return if the program may start.

        Raises:
            PermissionError: the owner refuses it or does not answer.
        """
        __tracebackhide__ = True
        name, verdict = secrets.token_hex(8), _Verdict()
        self._waiting[name] = verdict
        try:
            with exempt():
                self._ask({**program, "name": name})
            while not verdict.answered.wait(_PATIENCE):
                if owner.owned.is_set():  # a new owner is told of the question too
                    verdict.refused = f"nobody said within {_PATIENCE:g} s whether it may start"
                    break
        finally:
            del self._waiting[name]
        if verdict.refused is not None:
            raise PermissionError(verdict.refused)


class _Verdict:
    def __init__(self) -> None:
        self.answered = threading.Event()
        self.refused: str | None = None


def audit(command: str | list[str]) -> None:
    """Announce a command, text for a shell or words, that is about to run.

    Raises:
        PermissionError: the owner refuses it.
    """
    __tracebackhide__ = True
    sys.audit(_COMMAND, command)


@contextmanager
def exempt() -> Iterator[None]:
    """Exempt programs that are started within the block: the kernel's own, and those that were judged before."""
    before, _own.trusted = getattr(_own, "trusted", False), True
    try:
        yield
    finally:
        _own.trusted = before


def _text(command: Any) -> dict[str, Any]:
    return {"text": _decoded(command)}


def _words(program: Any, words: Any) -> dict[str, Any]:
    decoded = [_decoded(word) for word in (words if isinstance(words, list | tuple) else [words])]
    if program is not None and decoded and os.path.basename(_decoded(program)) != os.path.basename(decoded[0]):  # noqa: PTH119
        decoded = [_decoded(program), *decoded[1:]]  # what runs, whatever it is called
    return {"words": decoded}


def _decoded(word: Any) -> str:
    try:
        return os.fsdecode(word)
    except (TypeError, ValueError):
        return str(word)


_EVENTS: dict[str, Callable[[tuple[Any, ...]], dict[str, Any]]] = {
    "os.system": lambda args: _text(args[0]),
    "subprocess.Popen": lambda args: _words(args[0], args[1]),
    "os.exec": lambda args: _words(args[0], args[1]),
    "os.posix_spawn": lambda args: _words(args[0], args[1]),
    "pty.spawn": lambda args: _words(None, args[0]),
    _COMMAND: lambda args: _text(args[0]) if isinstance(args[0], str) else _words(None, args[0]),
}
