"""Programs that user code starts by itself are judged by the kernel's owner, who has the rules, before they start.

By an audit hook of Python's: what starts programs past the interpreter is not seen, nor what a forked child does. The runner of
commands (`command`) starts what it is given, and tells of that before (`said`).
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

#: How long the owner may take to answer, in seconds: its event loop may be busy. Without an answer it does not start.
_PATIENCE = 120.0
#: What is longer is not asked about, and does not start.
_WORDS, _CHARS = 10_000, 4 * 1024 * 1024

_COMMAND = "kernelexec.command"

_own = threading.local()


class Watch:
    """Asks, by ``ask``, about each program that is about to be started, and waits for what ``answer`` is told."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any]) -> None:
        self._ask = ask
        self._waiting: dict[str, _Verdict] = {}

    def begin(self) -> None:
        """From now on; nothing takes it back."""
        sys.addaudithook(self._heard)

    def answer(self, name: object, refused: object) -> None:
        """Why the program that was asked about under that name does not start; None where it does."""
        verdict = self._waiting.get(name) if isinstance(name, str) else None
        if verdict is not None:
            verdict.refused = refused if isinstance(refused, str) else None
            verdict.given.set()

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        __tracebackhide__ = True
        read = _EVENTS.get(event)
        if read is None or fork_flag.forked or getattr(_own, "trusted", False):
            return
        said = read(args)
        texts = [said["text"]] if "text" in said else said["words"]
        if len(texts) > _WORDS or sum(map(len, texts)) > _CHARS:
            raise PermissionError(
                f"It is longer than {_CHARS} characters, or {_WORDS} words: put it into a file, and run that."
            )
        self._judge(said)

    def _judge(self, said: dict[str, Any]) -> None:
        """Return if it may start.

        Raises:
            PermissionError: it may not, or nobody says.
        """
        __tracebackhide__ = True
        name, verdict = secrets.token_hex(8), _Verdict()
        self._waiting[name] = verdict
        try:
            with trusted():
                self._ask({**said, "name": name})
            while not verdict.given.wait(_PATIENCE):
                if owner.owned.is_set():  # a new owner is told of the question too
                    verdict.refused = f"nobody said within {_PATIENCE:g} s whether it may start"
                    break
        finally:
            del self._waiting[name]
        if verdict.refused is not None:
            raise PermissionError(verdict.refused)


class _Verdict:
    def __init__(self) -> None:
        self.given = threading.Event()
        self.refused: str | None = None


def said(command: str | list[str]) -> None:
    """Tell of a command, a text for a shell or words, that is about to run.

    Raises:
        PermissionError: it may not.
    """
    __tracebackhide__ = True
    sys.audit(_COMMAND, command)


@contextmanager
def trusted() -> Iterator[None]:
    """What is started within is the kernel's own affair, or was judged before."""
    before, _own.trusted = getattr(_own, "trusted", False), True
    try:
        yield
    finally:
        _own.trusted = before


def _text(said: Any) -> dict[str, Any]:
    return {"text": _decoded(said)}


def _words(program: Any, words: Any) -> dict[str, Any]:
    found = [_decoded(word) for word in (words if isinstance(words, list | tuple) else [words])]
    if program is not None and found and os.path.basename(_decoded(program)) != os.path.basename(found[0]):  # noqa: PTH119
        found = [_decoded(program), *found[1:]]  # what runs, whatever it is called
    return {"words": found}


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
