"""A command in a session and process group of its own, with streamed output and an end without leftover processes.

A command may run as another account of the system, and read and write streams of the owner. The owner may also run the whole
command: then the container engine starts ``main`` as the command's user.
"""

from __future__ import annotations

import codecs
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from .. import platform
from ..owner import exempt
from ..platform import pwd
from ..protocol import COMMAND_MARK_VARIABLE, END_COMMAND_FLAG, CommandProcess
from . import proc, tree

#: Seconds for a command to obey SIGINT, and then SIGTERM, before the next signal.
TERMINATE_SECONDS = 0.4
#: Seconds between two looks at a process where the system reports no end.
_LOOK_SECONDS = 0.05
READ_BYTES = 64 * 1024
#: Seconds between two looks for processes with the mark of a command that has to end.
_MARK_SECONDS = 0.02
_SHELL_SIGNAL_BASE = 128
_OWNER_GONE = "The process that {} is gone: it is unknown how far the command came."


class RunningCommand:
    """A running command. ``out`` and ``err`` get decoded text; with ``err`` None, stderr goes to ``out``.

    Later text of a background child is passed on in the command's context while ``is_newest`` holds, and without a context
    after that.

    ``out_bytes`` gets the bytes of stdout, instead of ``out``, and returns whether more are wanted; if not, stdout is closed.
    ``stdin`` is text, or a function for the next bytes, none at the end. The command runs as an ``account``, or as the
    account of this process.
    """

    def __init__(
        self,
        argv: list[str],
        *,
        out: Callable[[str], Any],
        err: Callable[[str], Any] | None,
        stdin: str | Callable[[], bytes] | None = None,
        out_bytes: Callable[[bytes], bool] | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        account: Account | None = None,
        is_newest: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_newest = is_newest
        self._late_context: Context | None = None
        self._mark = secrets.token_hex(16)
        self._argv = argv
        self._sinks = {"stdout": out, "stderr": err}
        self._out_bytes = out_bytes
        self._account = account
        self._read_input = stdin if callable(stdin) else None
        self._input = memoryview(stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else b"")
        self._cwd = cwd
        self._env = {**(os.environ if env is None else env), **tree.MARK_ENVIRONMENT, COMMAND_MARK_VARIABLE: self._mark}
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[Any, Any] = {}
        self._has_pidfd = False

    def run(self) -> int:
        """Run the command and return the exit code, as in a shell 128 + n after a death by signal n.

        Raises:
            OSError: the program cannot be started.
            KeyboardInterrupt: passed on after the end of the command and of all its processes.
        """
        # The system drops exit codes where SIGCHLD is ignored.
        with _handle_signal(signal.SIGCHLD, signal.SIG_DFL, before=signal.SIG_IGN):
            return self._run()

    def _run(self) -> int:
        with proc.raise_oom_score(), exempt():
            process = subprocess.Popen(
                self._argv,
                # Looked up in this process's PATH: ``Popen`` would take the PATH of ``env``, which a command may have changed.
                executable=shutil.which(self._argv[0]),
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.PIPE if self._input or self._read_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if self._sinks["stderr"] is None else subprocess.PIPE,
                **platform.PLATFORM.new_group_options,
                **({} if self._account is None else self._account.process_options),
                restore_signals=True,
            )
        tree.running_groups.add(process.pid)
        try:
            self._register(process)
            self._pump(process, None)
        except BaseException:  # an interrupt, or an error of the sink
            # A second interrupt must not break off the end, which would leave processes of the command.
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
                self._has_pidfd = True

    def _pump(self, process: subprocess.Popen[bytes], seconds: float | None) -> bool:
        """Move data until the process has ended (return True) or the time is over (False)."""
        # The end of the process counts, not of the pipes, which a background child may hold open forever.
        deadline = None if seconds is None else time.monotonic() + seconds
        while process.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if not self._has_pidfd:
                left = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
            self._move(left)
        self._finish()
        return True

    def _finish(self) -> None:
        """Read the output so far, no longer: a background child may write forever."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None and not isinstance(key.data, subprocess.Popen):
                left = platform.unread_bytes(key.fd)  # then once more, which finds and closes a pipe at its end
                while left >= 0 and (count := self._read(key.fileobj, key.data)):
                    left -= count

    def _move(self, timeout: float | None) -> None:
        """Handle the ready pipes."""
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._feed(key.fileobj)
            elif not isinstance(key.data, subprocess.Popen):
                self._read(key.fileobj, key.data)

    def _feed(self, pipe: Any) -> None:
        if not self._input and self._read_input is not None:
            self._input = memoryview(self._read_input())
            if not self._input:
                self._close(pipe)
                return
        try:
            written = os.write(pipe.fileno(), self._input[:READ_BYTES])
        except BlockingIOError:
            return
        except OSError:  # the command reads no more, so the rest is dropped
            written, self._read_input = len(self._input), None
        self._input = self._input[written:]
        if not self._input and self._read_input is None:
            self._close(pipe)

    def _read(self, pipe: Any, sink: Callable[[str], Any]) -> int:
        """Pass on the next output; return the number of bytes, 0 if there are none or no more are wanted."""
        try:
            content = os.read(pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            content = b""
        wants_more = bool(content)
        if sink is self._sinks["stdout"] and self._out_bytes is not None:
            wants_more = wants_more and self._out_bytes(content)
        elif text := self._decoders[pipe].decode(content, final=not content):
            self._pass_on(sink, text)
        if not wants_more:
            self._close(pipe)
        return len(content) if wants_more else 0

    def _pass_on(self, sink: Callable[[str], Any], text: str) -> None:
        if self._late_context is not None and self._is_newest():
            self._late_context.run(sink, text)
        else:
            sink(text)

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
        """Close the command's descriptors, and start a thread to read pipes still held by a background child."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, subprocess.Popen):
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
            elif key.data is None:
                self._close(key.fileobj)
        if not self._selector.get_map():
            self._selector.close()
            return
        self._late_context = copy_context()
        threading.Thread(target=self._read_on, name=f"output of {process.pid}", daemon=True).start()

    def _read_on(self) -> None:
        while self._selector.get_map():
            self._move(None)
        self._selector.close()


@contextmanager
def _handle_signal(signum: signal.Signals, handler: signal.Handlers, before: signal.Handlers | None = None) -> Iterator[None]:
    """Replace the handler of a signal within the block, in the main thread only; with ``before``, no other handler."""
    # Python allows changes of handlers in the main thread only.
    present = signal.getsignal(signum)
    if threading.current_thread() is not threading.main_thread() or (before is not None and present is not before):
        yield
        return
    signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, present)


@dataclass(frozen=True)
class Account:
    """An account of this system for a command, other than the kernel's own."""

    uid: int
    gid: int
    variables: dict[str, str]
    """The variables with its name and home directory, for programs."""
    process_options: dict[str, Any]
    """Arguments of ``subprocess.Popen`` for a process of the account."""


def find_account(user: str) -> Account | None:
    """Return the account of a name or number, unknown numbers included; None for this process's own account."""
    entry = _find_account_entry(user)
    if entry is None:
        uid = int(user) if user.isdecimal() else -1
        return None if uid == os.getuid() else Account(uid, uid, {}, {"user": uid, "group": uid, "extra_groups": []})
    if entry.pw_uid == os.getuid():
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    process_options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
    return Account(entry.pw_uid, entry.pw_gid, _account_variables(entry), process_options)


def _find_account_entry(user: str) -> Any:
    """Return the entry of ``passwd`` for a name or number, or None."""
    try:
        return pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, AttributeError):
        return None


def _account_variables(entry: Any) -> dict[str, str]:
    """Return the variables with the name and home directory of an account, for programs."""
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


#: Sends a question to the owner, and returns its answer.
AskOwner = Callable[[dict[str, Any]], Mapping[str, Any]]


class OwnerStreams:
    """The owner's side of a command; ``read`` and ``write`` are None for streams of the kernel."""

    def __init__(self, ask: AskOwner, process: CommandProcess) -> None:
        self._ask = ask
        self._has_input = True
        self.read = self._read if process["reads_owner"] else None
        self.write = self._write if process["writes_owner"] else None

    def _read(self) -> bytes:
        """Return the next bytes of the standard input; none at the end.

        Raises:
            RuntimeError: another owner has taken over this kernel, without the rest of the input.
        """
        if not self._has_input:
            return b""
        answer = self._ask({"action": "read"})
        if "content" not in answer:
            raise RuntimeError(_OWNER_GONE.format("had the rest of the command's input"))
        self._has_input = answer.get("more") is True
        return b64decode(str(answer.get("content", "")))

    def _write(self, content: bytes) -> bool:
        """Pass on bytes of the standard output; return whether more are wanted."""
        return self._ask({"action": "write", "content": b64encode(content).decode()}).get("more") is True

    def run(self) -> int:
        """Run the command as the command's user, and return the exit code.

        Raises:
            RuntimeError: another owner has taken over this kernel, and did not start the command.
        """
        code = self._ask({"action": "run"}).get("exit_code")
        if not isinstance(code, int):
            raise RuntimeError(_OWNER_GONE.format("ran the command"))  # noqa: TRY004 - no argument of the caller
        return code

    def end(self) -> None:
        """End the process started by ``run``, and wait for the end."""
        self._ask({"action": "end"})


def main(flag: str, arguments: list[str]) -> None:
    """Replace this process by the shell of a command of its user, or end all processes with the mark of a command.

    Raises:
        SystemExit: the shell cannot be started.
    """
    if flag == END_COMMAND_FLAG:
        _end_marked(f"{COMMAND_MARK_VARIABLE}={arguments[0]}".encode())
        return
    entry = _find_account_entry(str(os.getuid()))
    variables = {} if entry is None else _account_variables(entry)
    chosen, command = arguments[0].split(","), arguments[1]
    os.environ.update({name: value for name, value in variables.items() if name not in chosen})
    with suppress(OSError):
        os.setsid()
    argv = [*platform.default_shell(), command]
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the shell is the program
    except OSError as exc:
        sys.exit(f"{argv[0]} cannot be started: {exc.strerror}.")


def _end_marked(entry: bytes) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        for pid, status in _marked(entry).items():
            proc.signal_process(pid, signum, status)
        deadline = time.monotonic() + TERMINATE_SECONDS
        while _marked(entry) and time.monotonic() < deadline:
            time.sleep(_MARK_SECONDS)  # processes of other parents: the system reports no end of them
    name, _, mark = entry.decode().partition("=")
    tree.kill_marked(name, mark)


def _marked(entry: bytes) -> dict[int, proc.ProcessStatus]:
    return {pid: status for pid, status in proc.read_processes().items() if proc.has_variable(pid, entry)}
