"""What is done once beside a session's kernels, by a program of ours in a place like theirs, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.runtime.processes import Leader, Mark
from kernelexec.provisioning.runtime.temp_dirs import temporary_directory
from kernelexec.text import clean_text
from kernelexec.workspace.safe_files import open_regular, read_regular

#: How the launcher does an errand.
TIMED_OUT = 124
_ANSWER_BYTES, _SAID_BYTES, _READ_BYTES = 4 * 1024 * 1024, 64 * 1024, 64 * 1024
Network = bool | Literal["bridge", "host"]


@dataclass(frozen=True, slots=True)
class Errand:
    """What is to be done; ``directory`` is its own, and what it needs and finds is there."""

    directory: Path
    order: Mapping[str, Any]
    """What the program is told; paths as kernels see them."""
    network: Network = False
    wheels: Path | None = None
    """A directory of wheels on this machine, to be read."""
    seconds: float = 600.0

    @property
    def fills(self) -> bool:
        """Whether it sees the workspace."""
        return self.order["fills"] is True

    def write(self, **more: object) -> None:
        """Write down what the program is told."""
        path = self.directory / protocol.ONE_SHOT_ORDER
        path.write_text(json.dumps({**self.order, **more}), encoding="utf-8")
        path.chmod(0o644)

    def answer(self) -> dict[str, Any]:
        """Return the answer that the program wrote; empty if there is none. Cells may have written anything there."""
        with suppress(OSError, ValueError, RecursionError):
            answer = json.loads(read_regular(self.directory / protocol.ONE_SHOT_ANSWER, _ANSWER_BYTES))
            return answer if isinstance(answer, dict) else {}
        return {}


@dataclass(frozen=True, slots=True)
class Done:
    """How an errand ended: the program's exit code, 124 where its time was over, what it wrote, and its answer."""

    exit_code: int
    said: str
    answer: dict[str, Any] = field(default_factory=dict)


def new_directory(session: Path, user: tuple[int, int] | None) -> Path:
    """A private directory for an errand, which kernels do not see, of a session by its own; given to a ``user``."""
    base = temporary_directory(session).parent
    path = Path(tempfile.mkdtemp(prefix="errand-", dir=base)).resolve()
    for name in ("tmp", "wheels", "fetched"):
        (path / name).mkdir()
    if user is not None and user[0] != platform.user():
        for each in (path, *path.iterdir()):
            os.chown(each, *user)
    return path


def copy_wheel(path: Path, directory: Path) -> Path:
    """Copy a wheel for an errand. A cell may have made it, so no link is followed, and no directory on the way may be a link.

    Raises:
        OSError: the wheel is missing, reached by a link, or not a regular file.
    """
    with os.fdopen(open_regular(path), "rb") as source:
        if Path(f"/proc/self/fd/{source.fileno()}").readlink() != path:
            message = f"a link leads to {path}"
            raise OSError(message)
        target = directory / "wheels" / path.name
        with target.open("xb") as copy:
            shutil.copyfileobj(source, copy)
    return target


async def run_here(argv: Sequence[str], environ: Mapping[str, str], errand: Errand) -> Done:
    """Run an errand as a process of this machine; all that it started ends with it.

    Raises:
        OSError: it cannot be started.
    """
    mark = Mark()
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=errand.directory,
        env={**environ, **mark.environ},
        **platform.HERE.apart,
    )
    leader, said, code = Leader.of(process.pid), bytearray(), TIMED_OUT
    async with anyio.create_task_group() as reading:
        reading.start_soon(_read, process.stdout, said)
        try:
            with anyio.move_on_after(errand.seconds):
                code = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, mark, leader)
                await process.wait()
    return done(errand, code, bytes(said))


async def _read(stdout: asyncio.StreamReader | None, said: bytearray) -> None:
    """Until nobody has it open any more; the newest of it."""
    while stdout is not None and (chunk := await stdout.read(_READ_BYTES)):
        said += chunk
        del said[:-_SAID_BYTES]


def _end(mark: Mark, leader: Leader) -> None:
    with suppress(OSError):
        platform.kill_group(leader.pid)
    mark.sweep(leader)


def done(errand: Errand, code: int, said: bytes) -> Done:
    """How it ended, from what its program wrote."""
    return Done(code, clean_text(said[-_SAID_BYTES:].decode("utf-8", "replace")), errand.answer())
