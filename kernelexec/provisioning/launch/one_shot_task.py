"""One-shot tasks of a session: a job of the launcher in the isolation of kernels, ended with all descendants."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.owned_directory import create_temp_directory
from kernelexec.provisioning.runtime.processes import ProcessMarker, SessionLeader
from kernelexec.text import clean_text, parse_untrusted_json
from kernelexec.workspace.safe_files import closing_fd, copy_content, read_regular
from kernelexec.workspace.system_calls import open_unlinked

#: Exit code of a task whose time was over.
TIMED_OUT = 124
_ANSWER_BYTES, _OUTPUT_BYTES = 4 * 1024 * 1024, 64 * 1024
#: The part of a wheel between two looks at the clock.
_COPIED_BYTES = 16 * 1024 * 1024
#: How long output is read after a task's end: a process that it leaves behind may hold the pipe open for ever.
_LAST_SECONDS = 1.0
Network = bool | Literal["bridge", "host"]


@dataclass(frozen=True, slots=True)
class OneShotTask:
    """A job for the launcher; ``directory`` holds the input and the answer of this job only."""

    directory: Path
    order: Mapping[str, Any]
    """The launcher's parameters; paths as kernels see them."""
    network: Network = False
    wheels: Path | None = None
    """A read-only directory of wheels on this machine."""
    seconds: float = 600.0

    @property
    def sees_workspace(self) -> bool:
        """Whether the task needs the workspace, to fill an environment there."""
        return self.order["fills"] is True

    def write_order(self, **extra: object) -> None:
        """Write the launcher's parameters, with ``extra`` parameters, into the directory."""
        path = self.directory / protocol.ONE_SHOT_ORDER
        path.write_text(json.dumps({**self.order, **extra}), encoding="utf-8")
        path.chmod(0o644)  # a container's user may be another one; the directory above is private

    def read_answer(self) -> dict[str, Any]:
        """Return the answer of the program; empty if missing or invalid, since code from cells may run in a task."""
        with suppress(OSError, ValueError):
            answer = parse_untrusted_json(read_regular(self.directory / protocol.ONE_SHOT_ANSWER, _ANSWER_BYTES))
            return answer if isinstance(answer, dict) else {}
        return {}


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The end of a task: the program's exit code (124 after a timeout), output and answer."""

    exit_code: int
    output: str
    answer: dict[str, Any] = field(default_factory=dict)


def create_task_directory(session: Path, user: tuple[int, int] | None) -> Path:
    """Create a directory for a task of that session, hidden from kernels and owned by ``user``."""
    base = create_temp_directory(session).parent
    path = Path(tempfile.mkdtemp(prefix="task-", dir=base)).resolve()
    for name in ("tmp", "wheels", "fetched"):
        (path / name).mkdir()
    if user is not None and user[0] != platform.user_id():
        for each in (path, *path.iterdir()):
            os.chown(each, *user)
    return path


def copy_wheel(path: Path, directory: Path, *, limit_bytes: int, deadline: float) -> None:
    """Copy a wheel for a task, until a ``deadline`` of the monotonic clock.

    A cell may have created the wheel, so neither the path nor a directory above may be a link, and bytes added during the
    copy are left out.

    Raises:
        OSError: the wheel is missing, reached by a link, not a regular file, or too large, or the time is over.
    """
    with closing_fd(open_unlinked(path)) as source:
        if (size := os.fstat(source).st_size) > limit_bytes:
            raise OSError(f"it has {size} bytes, the limit is {limit_bytes}")
        with (directory / "wheels" / path.name).open("xb", buffering=0) as copy:
            for position in range(0, size, _COPIED_BYTES):
                if time.monotonic() > deadline:
                    raise TimeoutError("the time limit was reached")
                copy_content(source, copy.fileno(), min(_COPIED_BYTES, size - position))


async def run_process(argv: Sequence[str], environ: Mapping[str, str], task: OneShotTask) -> TaskResult:
    """Run a task as a process of this machine, and end all descendants with the process."""
    marker = ProcessMarker()
    transport, protocol = await asyncio.get_running_loop().subprocess_exec(
        _TaskProtocol,
        *argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=task.directory,
        env={**environ, **marker.environ},
        **platform.PLATFORM.process_group_options,
    )
    with closing(transport):
        leader, code = SessionLeader.of(transport.get_pid()), TIMED_OUT
        try:
            with anyio.move_on_after(task.seconds):
                await protocol.exited.wait()
                code = transport.get_returncode() or 0
        finally:  # also after its end: descendants go on, and a cancelled caller must leave none
            await await_to_end(_end_process(protocol, marker, leader))
        with anyio.move_on_after(_LAST_SECONDS):
            await protocol.closed.wait()
    return build_result(task, code, bytes(protocol.output))


class _TaskProtocol(asyncio.SubprocessProtocol):
    """The last 64 KiB of a process's output, with events for the end of the process and of all writers.

    ``asyncio.subprocess`` does not close a pipe held open by a descendant in another session.
    """

    def __init__(self) -> None:
        self.output = bytearray()
        self.exited, self.closed = asyncio.Event(), asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 - asyncio's signature, of the one pipe
        self.output += data
        del self.output[:-_OUTPUT_BYTES]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - as above
        self.closed.set()

    def process_exited(self) -> None:
        self.exited.set()


async def _end_process(protocol: _TaskProtocol, marker: ProcessMarker, leader: SessionLeader) -> None:
    """Kill a task with all descendants, and wait for the end of the task."""
    await anyio.to_thread.run_sync(_kill_processes, marker, leader)
    await protocol.exited.wait()


def _kill_processes(marker: ProcessMarker, leader: SessionLeader) -> None:
    with suppress(OSError):
        platform.kill_group(leader.pid)
    marker.sweep(leader)


def build_result(task: OneShotTask, code: int, output: bytes) -> TaskResult:
    """Return the result of an ended task from output and answer."""
    return TaskResult(code, clean_text(output[-_OUTPUT_BYTES:].decode("utf-8", "replace")), task.read_answer())
