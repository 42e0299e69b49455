"""A program in a pseudo-terminal, as a person at a keyboard has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.command_line import environment
from tests.support.pace import BOUND

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """Starts a program, types, and reads on until what is expected has come."""

    def __init__(self, words: list[str], *, cwd: Path, **env: str) -> None:
        self._words = words
        self._cwd = cwd
        self._env = environment(TERM="dumb", PROMPT_TOOLKIT_NO_CPR="1", COLUMNS="200", LINES="50") | env
        self._read = 0
        self.text = ""
        self.raw = b""

    def __enter__(self) -> Self:
        self._fd, side = pty.openpty()
        termios.tcsetwinsize(side, (50, 200))
        self.process = subprocess.Popen(
            self._words, cwd=self._cwd, env=self._env, stdin=side, stdout=side, stderr=side, start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one thread, and only a terminal is taken
        )  # fmt: skip
        os.close(side)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(BOUND)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._fd)

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until_hidden(self) -> None:
        """Wait until what is typed is not shown."""
        deadline = time.monotonic() + BOUND
        while termios.tcgetattr(self._fd)[3] & termios.ECHO:
            assert time.monotonic() < deadline
            self._fill(0.02)

    def status(self) -> int | None:
        return self.process.poll()

    def idle(self) -> None:
        """Read what comes, for a moment at most: for loops that wait for something else."""
        self._fill(0.2)

    def expect(self, pattern: str) -> str:
        """The text up to and with the pattern, which comes next."""
        deadline = time.monotonic() + BOUND
        while not (actual := re.compile(pattern).search(self.text, self._read)):
            left = deadline - time.monotonic()
            assert left > 0, (
                f"{pattern!r} did not come after {self.text[: self._read][-200:]!r}: {self.text[self._read :][-500:]!r}"
            )
            assert self._fill(left), f"the program ended before {pattern!r}: {self.text[self._read :]!r}"
        passed, self._read = self.text[self._read : actual.end()], actual.end()
        return passed

    def end(self) -> int:
        """Wait for the program's end; its exit status."""
        deadline = time.monotonic() + BOUND
        while self._fill(max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, self.text[self._read :]
        return self.process.wait(BOUND)

    def _fill(self, patience: float) -> bool:
        """Read what comes within the time; False at the end of all."""
        ready, _, _ = select.select([self._fd], [], [], patience)
        if not ready:
            return True
        try:
            chunk = os.read(self._fd, 65536)
        except OSError:  # Linux's error where the other side is closed
            return False
        self.raw += chunk
        self.text += _CONTROL.sub("", chunk.decode("utf-8", "replace")).replace("\r", "")
        return bool(chunk)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
