"""The shared base of a session's parts: state, operations, directories for calls of the kernel, and checks of arguments."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from kernelexec import cells
from kernelexec.cancellation import await_to_end
from kernelexec.cells import CodeCell, CommandOptions, ShellCell
from kernelexec.errors import InvalidRequest, KernelError, KernelNotAnswering
from kernelexec.kernel import Kernel
from kernelexec.results import ExecutionResult, SecurityError
from kernelexec.session.cells.cell_run import CellRun, CommandStreams, OnBytes, OnOutput
from kernelexec.session.cells.queue import CellQueue
from kernelexec.session.cells.result_builder import build_aborted_result
from kernelexec.session.cells.runner import RunContext
from kernelexec.session.kernels.starts import WayBack
from kernelexec.session.lifecycle import run_in_thread
from kernelexec.workspace.rmtree import CALL_SECONDS, remove_within
from kernelexec.workspace.safe_files import create_beneath

#: The number of threads in which one session uses files.
_THREADS = 2
T = TypeVar("T")
_NO_ANSWER_REASON = "the kernel may hold the interpreter's lock in C code, or the answer takes too long"
_USER_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionContext(RunContext):
    """The shared state of a session's parts, and their common operations."""

    queue: CellQueue
    _threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(_THREADS))

    async def read_in_thread(self, call: Callable[..., T], *args: object) -> T:
        """Return the result of a call on files. A session has few threads, so slow files delay no other session."""
        return await anyio.to_thread.run_sync(call, *args, limiter=self._threads)

    def to_kernel_path(self, path: str | Path) -> str:
        """Return a path of this machine as seen by kernels."""
        return self.kernels.backend.to_kernel_path(str(path))

    def resolve_work_dir(self, work_dir: str | os.PathLike[str] | None) -> str | None:
        """Return a workspace directory as seen by kernels, or raise ``InvalidWorkDir``; None is the current directory."""
        if work_dir is None:
            return None
        return self.to_kernel_path(self.workspace.directory(self.kernels.backend.to_host_path(work_dir)))

    async def make_command(
        self,
        command: str,
        work_dir: str | os.PathLike[str] | None,
        stdin: str | bytes | None,
        env: object,
        user: object,
        on_stdout: OnBytes | None,
    ) -> tuple[ShellCell, CommandStreams]:
        """Return the cell for a command, and its streams of bytes.

        Raises:
            InvalidWorkDir, InvalidCode: the directory or the command is invalid.
            InvalidRequest: ``env`` or ``user`` is invalid, or commands cannot run as this user.
        """
        directory, options = self.resolve_work_dir(work_dir), None
        text, content = (None, bytes(stdin)) if isinstance(stdin, bytes | bytearray | memoryview) else (stdin, None)
        variables, account = check_variables(env), check_account(user)
        if variables or account or on_stdout or content is not None:
            owner_runs = account is not None and self.kernels.backend.check_user(account)
            digest = None if content is None else await anyio.to_thread.run_sync(lambda: sha256(content).hexdigest())
            options = CommandOptions(variables, account, owner_runs, digest, on_stdout is not None)
        limit = self.config.capacity.code_bytes
        cell = cells.make_command_cell(command, work_dir=directory, stdin=text, limit_bytes=limit, options=options)
        return cell, CommandStreams(content or b"", on_stdout)

    async def approve(self, run: CellRun, case_runs: Sequence[CellRun] | None = None) -> None:
        """Approve a run outside of the queue, or raise ``SecurityError``: nothing ran."""
        if (reason := await self.approval.check(run, case_runs)) is not None:
            result = build_aborted_result(run, self.name, self.kernels.python.epoch, reason)
            raise SecurityError(self.masking.mask_text(reason), self.masking.mask_result(result))

    def get_living_kernel(self) -> Kernel:
        """Return the living Python kernel; raise ``KernelNotAnswering`` without a living kernel, ``Closed`` if closed."""
        self.scope.check_open()
        kernel = self.kernels.python.kernel
        if kernel is None or not kernel.alive:
            raise KernelNotAnswering(
                f"Session {self.name!r} has no living kernel: its state is gone, and the next cell starts a new one."
            )
        return kernel

    async def request(self, channel: str, msg_type: str, content: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Return the living kernel's unvalidated reply; raise ``KernelNotAnswering`` if none comes in time."""
        reply = await self.get_living_kernel().client.request(channel, msg_type, content, patience=timeout)
        if reply is None:
            self.get_living_kernel()  # raises with the true reason if the kernel has died meanwhile
            raise KernelNotAnswering(f"The kernel of session {self.name!r} did not answer in time: {_NO_ANSWER_REASON}.")
        return reply

    async def run_internally(
        self,
        source: str,
        timeout: float,
        *,
        choose_checkpoint: Callable[[], Awaitable[WayBack]] | None = None,
        prepare: Callable[[Kernel], Awaitable[str]] | None = None,
        keeps_variables: bool = False,
        on_output: OnOutput | None = None,
    ) -> tuple[CellRun, ExecutionResult]:
        """Run an internal cell, which waits for its place in the queue and which no notebook records.

        In the cell's turn, ``choose_checkpoint`` returns the way back for the kernel, and ``prepare`` returns a source to run
        instead of ``source``. With ``keeps_variables`` the cell leaves the user's variables unchanged.
        """
        run = self.make_run(CodeCell(source), timeout, internal=True, keeps_variables=keeps_variables, on_output=on_output)
        run.choose_checkpoint, run.prepare = choose_checkpoint, prepare
        submitted = self.queue.add(run)
        try:
            return run, await submitted.wait()
        except anyio.get_cancelled_exc_class():
            run.request_interrupt()  # the caller has no id to wait for this call again
            if run.prepare is not None:
                await await_to_end(run.done.wait())  # the caller removes everything that is prepared
            raise

    async def call_launcher(
        self,
        source: str,
        timeout: float | None,
        *,
        prepare: Callable[[Kernel], Awaitable[str]] | None = None,
        keeps_variables: bool = False,
    ) -> dict[str, Any]:
        """Run a function of the launcher as an internal cell, and return the unvalidated answer.

        ``prepare`` and ``keeps_variables`` are as in ``run_internally``.

        Raises:
            InvalidTimeout, QueueFull, Closed: nothing ran.
            ExecutionFailed: the call failed, or was ended before it finished.
            KernelError: the launcher did not answer.
        """
        self.scope.check_open()
        budget = self.choose_timeout(timeout)
        run, result = await self.run_internally(source, budget, prepare=prepare, keeps_variables=keeps_variables)
        answer = run.get_launcher_report().get("answer")
        if not isinstance(answer, dict):
            result.raise_for_error()
            raise KernelError(
                "The kernel did not report the result of the launcher's call: another program may have replaced the launcher."
            )
        return answer


class KernelDirectory:
    """A directory with a new name below the workspace, for the kernel's files of a single call.

    Only this side creates the directory, so late files of a cancelled call have no place. If a cell fills the directory as
    fast as this side removes files, the rest stays in the workspace.
    """

    def __init__(self, context: SessionContext, parent: Path) -> None:
        self._top = context.workspace_path
        self._lock, self._is_over = threading.Lock(), False
        self.name = uuid.uuid4().hex
        self.relative = parent / self.name
        self.path = self._top / self.relative
        self.kernel_path = context.to_kernel_path(self.path)

    async def prepare(self, source: str, _kernel: object) -> str:
        """Create the directory just before the kernel writes; return the code to run.

        Raises:
            OSError: the directory cannot be created.
        """
        await await_to_end(run_in_thread(self._create))
        return source

    def _create(self) -> None:
        with self._lock:
            if not self._is_over:  # a creation whose caller was cancelled may come after the removal
                create_beneath(self._top, self.relative)

    async def remove(self) -> None:
        """Remove the directory for ever, also in a cancelled task. A missing directory is no error."""
        await await_to_end(run_in_thread(self._remove))

    def _remove(self) -> None:
        with self._lock:
            self._is_over = True
            remove_within(self._top, self.relative, seconds=CALL_SECONDS)


def check_whole_number(value: object, name: str, meaning: str, low: int, high: int | None = None) -> int:
    """Return a whole number; raise ``InvalidRequest`` for another value. ``meaning`` completes the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidRequest(f"{name}={value!r:.100} must be {meaning}, {limits}.")
    return value


def check_names(names: object, limit: int) -> list[str]:
    """Return the names of variables as a list; raise ``InvalidRequest`` for another value, or for too many."""
    texts = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [None]
    if len(texts) > limit or not all(isinstance(name, str) for name in texts):
        raise InvalidRequest(f"names={names!r:.100} must be a list of names, {limit} at most.")
    return [str(name) for name in texts]


def check_variables(env: object) -> tuple[tuple[str, str], ...]:
    """Return the variables of a command; raise ``InvalidRequest`` unless they are texts by names of variables."""
    if env is None:
        return ()
    if not isinstance(env, Mapping):
        raise InvalidRequest(f"env must be a dictionary of texts, not {type(env).__name__}.")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or not _is_text(name):
            raise InvalidRequest(f"env has {name!r:.100}, which is no name of a variable.")
        if not isinstance(value, str) or not _is_text(value):
            raise InvalidRequest(f"env[{name!r:.100}] must be text without NUL characters, not {type(value).__name__}.")
    return tuple(env.items())


def check_account(user: object) -> str | None:
    """Return the name or number of an account; raise ``InvalidRequest`` for another value."""
    if user is None:
        return None
    if isinstance(user, int) and not isinstance(user, bool) and user >= 0:
        return str(user)
    is_name = isinstance(user, str) and 0 < len(user) <= _USER_CHARS and user.isprintable() and not user.startswith("-")
    if not isinstance(user, str) or not is_name:
        raise InvalidRequest(f"user={user!r:.100} must be the name or the number of an account.")
    return user


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
