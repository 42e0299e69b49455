"""Commands in the background: the control thread starts, describes and ends them, whatever a cell does."""

from __future__ import annotations

import codecs
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from typing import IO, Any

from .. import platform
from ..owner import exempt
from ..protocol import COMMAND_MARK_VARIABLE
from . import tree
from .command import READ_BYTES, TERMINATE_SECONDS
from .proc import raise_oom_score

#: Bounds of the newest lines that are kept of each stream.
_LINES, _CHARS = 10_000, 4 * 1024 * 1024
_LINE_CHARS = 64 * 1024


class Jobs:
    """The background commands of a kernel, by the owner's names."""

    def __init__(self, lasting: set[int]) -> None:
        self._lasting = lasting
        self._jobs: dict[str, _Job] = {}

    def answer(self, request: dict[str, Any], start: Any) -> dict[str, Any]:
        """Perform the ``action`` of a request on the command ``name``, and return the reply.

        ``start`` returns program, directory and environment of a new command.
        """
        action, name = request.get("action"), request.get("name")
        if action == "list":
            return {"status": "ok", "jobs": [job.describe() for job in self._jobs.values()]}
        if action == "start" and isinstance(name, str) and name not in self._jobs:
            try:
                started = self._jobs[name] = _Job(name, *start(request.get("command"), request.get("work_dir")))
                self._lasting.add(started.pid)
            except (OSError, ValueError, TypeError) as exc:
                return {"status": "error", "evalue": str(exc)}
            return {"status": "ok", "job": started.describe()}
        job = self._jobs.get(name) if isinstance(name, str) else None
        if job is None:
            return {"status": "ok", "job": None}
        if action == "kill":
            job.kill()
        if action == "forget" and not job.is_running:
            del self._jobs[job.name]
            self._lasting.discard(job.pid)
        lines = request.get("lines")
        return {"status": "ok", "job": job.describe(lines if action == "output" and isinstance(lines, int) else None)}


class _Job:
    """A background command, without stdin, in a session and process group of its own."""

    def __init__(self, name: str, argv: list[str], cwd: str | None, env: dict[str, str]) -> None:
        self.name = name
        self._mark = secrets.token_hex(16)
        self._killed = False
        self._exit_code: int | None = None
        self._start_time, self._end_time = time.monotonic(), 0.0
        with raise_oom_score(), exempt():
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**env, **tree.MARK_ENVIRONMENT, COMMAND_MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **platform.PLATFORM.new_group_options,
            )
        self._streams = {stream: _NewestLines(getattr(self._process, stream)) for stream in ("stdout", "stderr")}
        for stream, newest in self._streams.items():
            threading.Thread(target=newest.read_all, name=f"{name} {stream}", daemon=True).start()
        threading.Thread(target=self._wait, name=name, daemon=True).start()

    @property
    def pid(self) -> int:
        """The id of the command's process, the leader of the group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the command runs, or output up to the end is still being read."""
        return self._exit_code is None

    def describe(self, lines: int | None = None) -> dict[str, Any]:
        """Describe the command, with this number of newest lines of each stream; None for no lines."""
        code = self._exit_code
        status = "running" if code is None else "killed" if self._killed else "failed" if code else "stopped"
        description: dict[str, Any] = {"name": self.name, "status": status, "pid": self._process.pid}
        description |= {"exit_code": None if code is None else code if code >= 0 else 128 - code}
        description["seconds"] = (self._end_time or time.monotonic()) - self._start_time
        for stream, newest in self._streams.items():
            description[f"{stream}_lines"] = newest.total
            if lines is not None:
                description[stream], description[f"{stream}_dropped"] = newest.tail(lines)
        return description

    def kill(self) -> None:
        """End the command's processes in a thread: by SIGTERM, then by SIGKILL."""
        if self._process.returncode is None:
            self._killed = True
            threading.Thread(target=self._end, name=f"end of {self.name}", daemon=True).start()

    def _end(self) -> None:
        with suppress(OSError):
            platform.signal_group(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(TERMINATE_SECONDS)
        tree.kill_group(self._process.pid)
        tree.kill_marked(COMMAND_MARK_VARIABLE, self._mark)

    def _wait(self) -> None:
        code = self._process.wait()
        self._end_time = time.monotonic()
        for newest in self._streams.values():
            newest.read_what_is_there()
        # Last: a command with an exit code counts as ended, and its description must have all of its output.
        self._exit_code = code


class _NewestLines:
    """The newest lines of one stream, within bounds."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.total = 0
        self._lines: deque[str] = deque()
        self._open = ""
        self._chars = 0
        # Two threads read: `read_all` all the time, and `_wait` the rest when the command has ended.
        self._lock = threading.Lock()

    def read_all(self) -> None:
        """Read until no process has the pipe open for writing."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while selector.select():
                with self._lock:
                    if self._read() == 0:
                        self._take(self._decoder.decode(b"", final=True))
                        self._pipe.close()
                        return

    def read_what_is_there(self) -> None:
        """Read the output so far, no longer: a child of the command may write forever."""
        with self._lock:
            left = -1 if self._pipe.closed else platform.unread_bytes(self._pipe.fileno())
            while left > 0 and (count := self._read()):
                left -= count

    def _read(self) -> int | None:
        """Read from the pipe, and return the number of bytes: 0 at the end, None if there are none yet."""
        try:
            content = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        self._take(self._decoder.decode(content))
        return len(content)

    def tail(self, count: int) -> tuple[str, int]:
        """Return the newest ``count`` lines, including an unfinished line, and the number of lines before them."""
        with self._lock:
            lines = [*self._lines, *([self._open] if self._open else [])]
            total = self.total + bool(self._open)
        shown = lines[-count:] if count > 0 else []
        return "".join(shown), total - len(shown)

    def _take(self, text: str) -> None:
        *ended, self._open = (self._open + text).split("\n")
        self._open = _shorten(self._open)
        if len(self._open) > _LINE_CHARS:
            ended, self._open = [*ended, self._open], ""
        for line in ended:
            self._lines.append(f"{_shorten(line)[:_LINE_CHARS]}\n")
            self._chars += len(self._lines[-1])
            self.total += 1
        while self._lines and (len(self._lines) > _LINES or self._chars > _CHARS):
            self._chars -= len(self._lines.popleft())


def _shorten(line: str) -> str:
    """Return a line; of a long line rewritten by carriage returns, as by a progress bar, the newest state only."""
    return line if len(line) <= _LINE_CHARS else line[line.rstrip("\r").rfind("\r") + 1 :]
