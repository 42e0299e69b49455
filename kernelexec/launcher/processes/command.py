"""Runs one command: its own session and process group, streams apart as they come, an end that leaves nothing of it."""

from __future__ import annotations

import codecs
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import platform
from ..output.pipe_reader import unread
from . import exec_audit, tree

MARK = "KERNELEXEC_COMMAND"
#: How long a command may take to obey SIGINT, and then SIGTERM, before the next signal, in seconds.
PATIENCE = 0.4
#: How often a command's process is looked at where the system does not tell of its end, in seconds.
_LOOK_SECONDS = 0.05
_READ_BYTES = 64 * 1024
_SHELL_SIGNAL_BASE = 128


class Command:
    """One command on its way. ``out`` and ``err`` get decoded text; with ``err`` None, stderr goes to ``out``."""

    def __init__(
        self,
        argv: list[str],
        *,
        out: Callable[[str], Any],
        err: Callable[[str], Any] | None,
        stdin: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self._mark = secrets.token_hex(16)
        self._argv = argv
        self._sinks = {"stdout": out, "stderr": err}
        self._input = memoryview(stdin.encode("utf-8", "surrogateescape")) if stdin else memoryview(b"")
        self._cwd = cwd
        self._env = {**(os.environ if env is None else env), **tree.MARKED, MARK: self._mark}
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[Any, Any] = {}

    def run(self) -> int:
        """Run to the end and return the exit code as a shell would say it: 128 + n after a death by signal n.

        Raises:
            OSError: the program cannot be started.
            KeyboardInterrupt: passed on once the command and all of its processes are gone.
        """
        with _waitable_children():
            return self._run()

    def _run(self) -> int:
        with tree.dying_first(), exec_audit.trusted():
            process = subprocess.Popen(
                self._argv,
                executable=shutil.which(self._argv[0]),
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.PIPE if self._input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if self._sinks["stderr"] is None else subprocess.PIPE,
                **platform.HERE.apart,
                restore_signals=True,
            )
        tree.running.add(process.pid)
        try:
            self._register(process)
            self._pump(process, None)
        except BaseException:  # an interrupt, or output that nobody takes
            with _deaf():
                self._end(process)
            raise
        finally:
            tree.running.discard(process.pid)
            self._leave(process)
        code = process.returncode
        return code if code >= 0 else _SHELL_SIGNAL_BASE - code

    def _register(self, process: subprocess.Popen[bytes]) -> None:
        for name in ("stdout", "stderr"):
            pipe = getattr(process, name)
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._decoders[pipe] = codecs.getincrementaldecoder("utf-8")("replace")
                self._selector.register(pipe, selectors.EVENT_READ, self._sinks[name])
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE)
        if platform.HERE.process_handles:
            with suppress(OSError):
                self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, process)

    def _pump(self, process: subprocess.Popen[bytes], seconds: float | None) -> bool:
        """Move data until the process has ended (True), or the time is over (False)."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while process.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not platform.HERE.process_handles:
                left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
            self._move(left)
        self._finish()
        return True

    def _finish(self) -> None:
        """Read what was written so far, and no more: a background child may write for ever."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None and not isinstance(key.data, subprocess.Popen):
                left = unread(key.fd)
                while left >= 0 and (count := self._read(key.fileobj, key.data)):
                    left -= count

    def _move(self, timeout: float | None) -> None:
        """Handle what is ready."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._feed(key.fileobj)
            elif not isinstance(key.data, subprocess.Popen):
                self._read(key.fileobj, key.data)

    def _feed(self, pipe: Any) -> None:
        try:
            written = os.write(pipe.fileno(), self._input[:_READ_BYTES])
        except BlockingIOError:
            return
        except OSError:
            written = len(self._input)
        self._input = self._input[written:]
        if not self._input:
            self._close(pipe)

    def _read(self, pipe: Any, sink: Callable[[str], Any]) -> int:
        """Hand on what is there; how many bytes that was."""
        try:
            found = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            found = b""
        if text := self._decoders[pipe].decode(found, final=not found):
            sink(text)
        if not found:
            self._close(pipe)
        return len(found)

    def _close(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        pipe.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for signum in platform.ENDING:
            with suppress(OSError):
                platform.signal_group(process.pid, signum)
            if self._pump(process, PATIENCE):
                break
        process.wait()
        tree.kill_group(process.pid)
        tree.sweep(MARK, self._mark)
        self._finish()

    def _leave(self, process: subprocess.Popen[bytes]) -> None:
        """Pipes that a background child still holds are read on by a thread, under the cell that started the command."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, subprocess.Popen):
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
            elif key.data is None:
                self._close(key.fileobj)
        if not self._selector.get_map():
            self._selector.close()
            return
        threading.Thread(target=self._read_on, name=f"output of {process.pid}", daemon=True).start()

    def _read_on(self) -> None:
        while self._selector.get_map():
            self._move(None)
        self._selector.close()


@contextmanager
def _waitable_children() -> Iterator[None]:
    """Where SIGCHLD is ignored the system throws exit codes away."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@contextmanager
def _deaf() -> Iterator[None]:
    """Further interrupts wait until the command is gone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
