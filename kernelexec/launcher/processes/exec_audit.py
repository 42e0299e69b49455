"""An audit hook that asks the kernel's owner about each program before user code starts it.

Programs that C code or a forked child starts are not seen. The shell announces a command by ``audit`` and starts it
``exempt``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import owner

#: Seconds for the owner's answer: its event loop may be busy. Without an answer the program does not start.
_PATIENCE_SECONDS = 120.0
#: Limits of a command; a longer one does not start.
_WORDS, _CHARS = 10_000, 4 * 1024 * 1024

_COMMAND = "kernelexec.command"

_thread_state = threading.local()


class ExecAudit:
    """The audit hook: it sends a question before each program, and waits for the answer to ``questions``."""

    def __init__(self, send: Callable[[dict[str, Any]], Any]) -> None:
        self.questions = owner.OwnerQuestions(exempt()(send), _PATIENCE_SECONDS)

    def install(self) -> None:
        """Add the audit hook, which Python never removes."""
        sys.addaudithook(self._handle_event)

    def _handle_event(self, event: str, args: tuple[Any, ...]) -> None:
        parse = _EVENTS.get(event)
        if parse is None or owner.is_forked_child or getattr(_thread_state, "trusted", False):
            return
        program = parse(args)
        texts = [program["text"]] if "text" in program else program["words"]
        if len(texts) > _WORDS or sum(map(len, texts)) > _CHARS:
            raise PermissionError(
                f"The command is longer than {_CHARS} characters or {_WORDS} words: write it to a file and run the file."
            )
        answer = self.questions.ask(program)
        if answer is None:
            raise PermissionError(f"the kernel's owner did not answer within {_PATIENCE_SECONDS:g} s")
        if isinstance(answer.get("refused"), str):
            raise PermissionError(answer["refused"])


def audit(command: str | list[str]) -> None:
    """Announce a command, text for a shell or words, that is about to run; raise PermissionError if the owner refuses it."""
    sys.audit(_COMMAND, command)


@contextmanager
def exempt() -> Iterator[None]:
    """Exempt programs that are started within the block: the kernel's own, and checked ones."""
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
