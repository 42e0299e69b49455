"""Commands: each in a session and process group of its own, with streamed output and an end that leaves no process.

In a ``ShellSession`` ``cd`` and ``export`` last for the next command. ``Jobs`` are commands in the background: the control
thread starts, describes and ends them, whatever a cell does.
"""

from __future__ import annotations

import codecs
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import platform
from ..protocol import COMMAND_MARK_VARIABLE
from . import exec_audit, tree

#: Seconds for a command to obey SIGINT, and then SIGTERM, before the next signal.
TERMINATE_SECONDS = 0.4
#: Seconds between two looks at a process where the system reports no end.
_LOOK_SECONDS = 0.05
_READ_BYTES = 64 * 1024
_SHELL_SIGNAL_BASE = 128
_ARGUMENT_BYTES = 100_000
_STATE = "KERNELEXEC_STATE"
# Saves the last directory and the environment of a command; on one line, so that the shell counts the lines from one.
_SAVE_STATE = 'trap \'{{ printf "%s\\0" "$PWD"; {env} -0; }} >"${state}" 2>/dev/null\' EXIT; {run}'
# Saves the environment of a prefix, which is no change by the command.
_SAVE_BEFORE = '{env} -0 >"${state}.before"; '
_EXEC = re.compile(r"\bexec\b")
# Commands of Windows shells that change the directory or the environment.
_CHANGE_OF_STATE = re.compile(r"\b(?:cd|chdir|pushd|set|setx|set-location)\b|\$env:", re.IGNORECASE)
_NOT_SAVED = frozenset({"_", "PWD", "SHLVL", COMMAND_MARK_VARIABLE, _STATE})
#: Bounds of the newest lines that are kept of each stream.
_LINES, _CHARS = 10_000, 4 * 1024 * 1024
_LINE_CHARS = 64 * 1024


class RunningCommand:
    """One command. ``out`` and ``err`` get decoded text; with ``err`` None, stderr goes to ``out``."""

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
        self._env = {**(os.environ if env is None else env), **tree.MARK_ENVIRONMENT, COMMAND_MARK_VARIABLE: self._mark}
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[Any, Any] = {}

    def run(self) -> int:
        """Run the command and return its exit code as a shell does: 128 + n after a death by signal n.

        Raises:
            OSError: the program cannot be started.
            KeyboardInterrupt: passed on once the command and all of its processes are gone.
        """
        # The system drops exit codes where SIGCHLD is ignored.
        with _handle_signal(signal.SIGCHLD, signal.SIG_DFL, before=signal.SIG_IGN):
            return self._run()

    def _run(self) -> int:
        with tree.oom_before_us(), exec_audit.exempt():
            process = subprocess.Popen(
                self._argv,
                executable=shutil.which(self._argv[0]),
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.PIPE if self._input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if self._sinks["stderr"] is None else subprocess.PIPE,
                **platform.PLATFORM.new_group_options,
                restore_signals=True,
            )
        tree.running_groups.add(process.pid)
        try:
            self._register(process)
            self._pump(process, None)
        except BaseException:  # an interrupt, or an error of the sink
            with _handle_signal(signal.SIGINT, signal.SIG_IGN):
                self._end(process)
            raise
        finally:
            tree.running_groups.discard(process.pid)
            self._release(process)
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
        if platform.PLATFORM.has_pidfd:
            with suppress(OSError):
                self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, process)

    def _pump(self, process: subprocess.Popen[bytes], seconds: float | None) -> bool:
        """Move data until the process has ended (return True) or the time is over (False)."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while process.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not platform.PLATFORM.has_pidfd:
                left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
            self._move(left)
        self._finish()
        return True

    def _finish(self) -> None:
        """Read the output so far only: a background child may write forever."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None and not isinstance(key.data, subprocess.Popen):
                left = platform.unread_bytes(key.fd)
                while left >= 0 and (count := self._read(key.fileobj, key.data)):
                    left -= count

    def _move(self, timeout: float | None) -> None:
        """Handle the pipes that are ready."""
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
        """Pass on the output that is ready; return its size in bytes."""
        try:
            content = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            content = b""
        if text := self._decoders[pipe].decode(content, final=not content):
            sink(text)
        if not content:
            self._close(pipe)
        return len(content)

    def _close(self, pipe: Any) -> None:
        self._selector.unregister(pipe)
        pipe.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for signum in platform.ENDING_SIGNALS:
            with suppress(OSError):
                platform.signal_group(process.pid, signum)
            if self._pump(process, TERMINATE_SECONDS):
                break
        process.wait()
        tree.kill_group(process.pid)
        tree.kill_marked(COMMAND_MARK_VARIABLE, self._mark)
        self._finish()

    def _release(self, process: subprocess.Popen[bytes]) -> None:
        """Have a thread read pipes that a background child still holds, under the cell that started the command."""
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
def _handle_signal(signum: signal.Signals, handler: signal.Handlers, before: signal.Handlers | None = None) -> Iterator[None]:
    """Have a signal handled otherwise within the block, in the main thread only, and only instead of ``before``."""
    present = signal.getsignal(signum)
    if threading.current_thread() is not threading.main_thread() or (before is not None and present is not before):
        yield
        return
    signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, present)


class ShellSession:
    """State between two commands: the directory and the changes of the environment."""

    def __init__(self) -> None:
        self._directory: str | None = None
        self._changes: dict[str, str | None] = {}
        self._since: str | None = None
        """The virtual environment that was active when a command changed PATH."""

    def run(self, shell: Any, command: str, work_dir: str | None, stdin: str | None) -> None:
        """Run a command by ``shell.run_argv`` and take over its changes, where the system's shells can save them."""
        env, active = shell.programs.environment(self._changes, self._since), shell.programs.active
        if not platform.PLATFORM.keeps_shell_state:
            shell.run_argv([*platform.default_shell(), command], text=command, stdin=stdin, cwd=work_dir, env=env)
            if _CHANGE_OF_STATE.search(command):
                sys.stderr.write("changes by cd and set do not last on this system: pass work_dir to the command\n")
            return
        with tempfile.TemporaryDirectory(prefix="command-", dir=shell.scratch) as temporary:
            state = Path(temporary) / "state"
            run = command
            if len(command.encode("utf-8", "surrogateescape")) > _ARGUMENT_BYTES:
                Path(f"{state}.sh").write_text(command, encoding="utf-8", errors="surrogateescape")
                run = f'. "${_STATE}.sh"'
            saving = (_SAVE_BEFORE if shell.programs.prefix else "") + _SAVE_STATE
            text = saving.format(state=_STATE, env=shutil.which("env") or "env", run=run)
            directory, argv = work_dir or self._find_directory(), platform.default_shell()
            shell.run_argv([*argv, text, argv[0]], text=command, stdin=stdin, cwd=directory, env={**env, _STATE: str(state)})
            before = _variables(_entries(f"{state}.before")) or env
            is_saved = self._take_changes(state, before, active, keep_directory=work_dir is not None)
            if not is_saved and not _EXEC.search(command):
                sys.stderr.write("the changes by cd and export could not be saved and do not last\n")

    def next_start(self, shell: Any) -> tuple[str | None, dict[str, str]]:
        """Return the next command's directory, None without a ``cd``, and environment."""
        return self._directory, shell.programs.environment(self._changes, self._since)

    def _find_directory(self) -> str | None:
        if self._directory is not None and not Path(self._directory).is_dir():
            sys.stderr.write(f"{self._directory} is gone: the command starts in {kernel_directory()}\n")
            self._directory = None
        return self._directory

    def _take_changes(self, state: Path, before: dict[str, str], active: str | None, *, keep_directory: bool) -> bool:
        """Take over the command's changes; return False if it saved none, as after ``exec``."""
        directory, *entries = _entries(state) or [""]
        after = _variables(entries)
        if not after:
            return False
        if not keep_directory:
            self._directory = directory
        for name in (before.keys() | after.keys()) - _NOT_SAVED:
            if after.get(name) != before.get(name):
                self._changes[name] = after.get(name)
                if name == "PATH":
                    self._since = active
        return True


def kernel_directory() -> str | None:
    """Return this process's directory; None if it was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _entries(path: str | Path) -> list[str]:
    with suppress(OSError):
        return os.fsdecode(Path(path).read_bytes()).split("\0")
    return []


def _variables(entries: Iterable[str]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


class Jobs:
    """Background commands of one kernel, by the owner's names."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def answer(self, request: dict[str, Any], start: Any) -> dict[str, Any]:
        """Do the ``action`` of a request for the command of a ``name``, and return the reply.

        ``start`` returns program, directory and environment of a new command.
        """
        action, name = request.get("action"), request.get("name")
        if action == "list":
            return {"status": "ok", "jobs": [job.describe() for job in self._jobs.values()]}
        if action == "start" and isinstance(name, str) and name not in self._jobs:
            try:
                started = self._jobs[name] = _Job(name, *start(request.get("command"), request.get("work_dir")))
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
        lines = request.get("lines")
        return {"status": "ok", "job": job.describe(lines if action == "output" and isinstance(lines, int) else None)}


class _Job:
    """One background command. It leads a session and process group of its own, and has no stdin."""

    def __init__(self, name: str, argv: list[str], cwd: str | None, env: dict[str, str]) -> None:
        self.name = name
        self._mark = secrets.token_hex(16)
        self._killed = False
        self._start_time, self._end_time = time.monotonic(), 0.0
        with tree.oom_before_us(), exec_audit.exempt():
            self._process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**env, **tree.MARK_ENVIRONMENT, COMMAND_MARK_VARIABLE: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **platform.PLATFORM.new_group_options,
            )
        self._streams = {"stdout": _NewestLines(), "stderr": _NewestLines()}
        for stream, newest in self._streams.items():
            pipe = getattr(self._process, stream)
            threading.Thread(target=newest.read_all, args=(pipe,), name=f"{name} {stream}", daemon=True).start()
        threading.Thread(target=self._wait, name=name, daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Return whether the command has not ended."""
        return self._process.returncode is None

    def describe(self, lines: int | None = None) -> dict[str, Any]:
        """Describe the command, with a number of its newest lines."""
        code = self._process.returncode
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
        if self.is_running:
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
        self._process.wait()
        self._end_time = time.monotonic()


class _NewestLines:
    """The newest lines of one stream, within bounds."""

    def __init__(self) -> None:
        self.total = 0
        self._lines: deque[str] = deque()
        self._open = ""
        self._chars = 0
        self._lock = threading.Lock()

    def read_all(self, pipe: Any) -> None:
        """Read until no process has the pipe open for writing."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with suppress(OSError, ValueError):
            while content := os.read(pipe.fileno(), _READ_BYTES):
                self._take(decoder.decode(content))
        self._take(decoder.decode(b"", final=True))
        with suppress(OSError):
            pipe.close()

    def tail(self, count: int) -> tuple[str, int]:
        """Return the newest ``count`` lines, an unfinished one included, and the number of lines before them."""
        with self._lock:
            lines = [*self._lines, *([self._open] if self._open else [])]
            total = self.total + bool(self._open)
        shown = lines[-count:] if count > 0 else []
        return "".join(shown), total - len(shown)

    def _take(self, text: str) -> None:
        with self._lock:
            *ended, self._open = (self._open + text).split("\n")
            if len(self._open) > _LINE_CHARS:
                ended, self._open = [*ended, self._open], ""
            for line in ended:
                self._lines.append(f"{line[:_LINE_CHARS]}\n")
                self._chars += len(self._lines[-1])
                self.total += 1
            while self._lines and (len(self._lines) > _LINES or self._chars > _CHARS):
                self._chars -= len(self._lines.popleft())
