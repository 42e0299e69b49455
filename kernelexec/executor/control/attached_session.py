"""A session of another process of this user as an object; cells run in turn with the owner's cells."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self, Unpack

from anyio.streams.buffered import BufferedByteReceiveStream

from kernelexec.errors import Closed, OwnerEnded
from kernelexec.executor.control.control_client import ControlClient
from kernelexec.provisioning.runtime.discovery import LiveSession
from kernelexec.results import ExecutionResult, Output, Progress, Restored, Variables
from kernelexec.results.one_line import join_parts
from kernelexec.results.session_contents import VARIABLES_MAX
from kernelexec.session.cells.cell_run import OnOutput
from kernelexec.session.features.saved_state.branches import BranchKeywords
from kernelexec.session.features.saved_state.checkpoints import AsyncCheckpoint
from kernelexec.text import escape_line


class AsyncAttachedSession:
    """An open session of another process, from ``kernelexec.attach`` or ``find_session``. Use as ``async with``.

    State, notebook and limits are the owner's. Leaving the block detaches; the session goes on.
    """

    def __init__(self, session: LiveSession) -> None:
        self.name = session.name
        self.workspace = Path(session.workspace)
        self.process = session.pid
        """The id of the owner's process."""
        self.journal = session.journal
        self.isolation = ""
        self._client = ControlClient(session.root, session.pid)
        self._held: BufferedByteReceiveStream | None = None

    async def __aenter__(self) -> Self:
        stream = await self._client.connect("attach", session=self.name)
        try:
            answer = await self._client.receive(stream, "attach")
            self.isolation = str(answer["attached"].get("isolation", ""))
        except BaseException:
            await stream.aclose()
            raise
        self._held = stream  # its end shows each side that the other one is gone
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.detach()

    async def detach(self) -> None:
        """Leave the session, which goes on; the owner sees the end of this client."""
        if self._held is not None:
            held, self._held = self._held, None
            await held.aclose()

    @property
    def summary(self) -> str:
        """A line with the name, the isolation, the owner's process and the workspace."""
        state = f"process {self.process}" if self._held is not None else "detached"
        return join_parts(f"{self.name} {self.isolation}".strip(), state, escape_line(str(self.workspace)))

    def __repr__(self) -> str:
        return f"<AsyncAttachedSession {self.summary}>"

    async def execute(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: str | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run a cell in the owner's session, after the waiting cells; see ``AsyncSession.execute``.

        If the call is cancelled, the cell is interrupted.

        Raises:
            InvalidCode, InvalidTimeout, InvalidRequest, QueueFull, Closed: before anything ran.
            OwnerEnded: the owner's process ended, or closed the session; the cell may have run.
        """
        return await self._run("execute", on_output, code=code, language=language, stdin=stdin, timeout=timeout)

    async def execute_command(
        self,
        command: str,
        *,
        work_dir: str | os.PathLike[str] | None = None,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run a shell command in the owner's session: see ``AsyncSession.execute_command``, and ``execute``."""
        directory = None if work_dir is None else os.fspath(work_dir)
        options: dict[str, Any] = {"work_dir": directory, "stdin": stdin, "env": None if env is None else dict(env)}
        return await self._run("execute_command", on_output, command=command, timeout=timeout, **options)

    async def stream(
        self, code: str, *, language: str = "python", stdin: str | None = None, timeout: float | None = None
    ) -> AsyncGenerator[Output | ExecutionResult, None]:
        """Run a cell; yield outputs as they arrive, then the result. If the caller stops iterating, the cell is interrupted."""
        arguments: dict[str, Any] = {"code": code, "language": language, "stdin": stdin, "timeout": timeout}
        async with aclosing(self._stream("execute", **arguments)) as items:
            async for item in items:
                yield item

    async def interrupt(self) -> str | None:
        """Interrupt the running cell, also a cell of the owner; return the execution id, None if nothing runs."""
        execution_id: str | None = (await self._ask("interrupt"))["interrupted"]
        return execution_id

    async def variables(self, *, names: Iterable[str] | None = None, limit: int = VARIABLES_MAX) -> Variables:
        """Return the variables of the session's kernel: see ``AsyncSession.variables``."""
        answer = await self._ask("variables", names=None if names is None else list(names), limit=limit)
        return Variables.from_dict(answer["variables"])

    async def checkpoint(
        self, name: str | None = None, *, files: bool = False, timeout: float | None = None
    ) -> AsyncCheckpoint:
        """Make a checkpoint of the session's kernel: see ``AsyncSession.checkpoint``."""
        answer = await self._ask("checkpoint", name=name, files=files, timeout=timeout)
        return self._read_checkpoint(answer["checkpoint"])

    async def checkpoints(self) -> tuple[AsyncCheckpoint, ...]:
        """Return the existing checkpoints: see ``AsyncSession.checkpoints``."""
        return tuple(map(self._read_checkpoint, (await self._ask("checkpoints"))["checkpoints"]))

    async def restore(
        self, saved: AsyncCheckpoint | str | int, *, files: bool = False, timeout: float | None = None
    ) -> Restored:
        """Go back to a checkpoint, for the owner too: see ``AsyncSession.restore``."""
        target = saved.to_dict() if isinstance(saved, AsyncCheckpoint) else saved
        return Restored.from_dict((await self._ask("restore", saved=target, files=files, timeout=timeout))["restored"])

    async def undo(self, cells: int = 1, *, files: bool = False, timeout: float | None = None) -> Restored:
        """Go back to the state before the last cells, the owner's too: see ``AsyncSession.undo``."""
        return Restored.from_dict((await self._ask("undo", cells=cells, files=files, timeout=timeout))["restored"])

    async def branch(self, name: str | None = None, **options: Unpack[BranchKeywords]) -> str:
        """Open a branch in the owner's process; return the branch's name for ``attach``: see ``AsyncSession.branch``."""
        return str((await self._ask("branch", name=name, **options))["branch"]["name"])

    async def promote(self, *, timeout: float | None = None) -> Restored:
        """Give this branch's state to the parent session, and close the branch: see ``AsyncSession.promote``."""
        return Restored.from_dict((await self._ask("promote", timeout=timeout))["restored"])

    async def end_session(self) -> None:
        """End the session itself with all kernels, for the owner too."""
        await self._ask("close")

    def _read_checkpoint(self, fields: Mapping[str, Any]) -> AsyncCheckpoint:
        async def drop(_: int) -> None:
            await self._ask("drop_checkpoint", checkpoint=dict(fields))

        return AsyncCheckpoint(drop, **fields)

    async def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON types
        self._check_attached()
        return await self._client.ask(do, session=self.name, **arguments)

    async def _run(self, do: str, on_output: OnOutput | None, **arguments: Any) -> ExecutionResult:  # noqa: ANN401 - JSON types
        async with aclosing(self._stream(do, **arguments)) as items:
            async for item in items:
                if isinstance(item, ExecutionResult):
                    return item
                if on_output is not None:
                    on_output(item)
        raise OwnerEnded(f"Process {self.process} ended during the call.")

    async def _stream(self, do: str, **arguments: Any) -> AsyncGenerator[Output | ExecutionResult, None]:  # noqa: ANN401 - JSON types
        self._check_attached()
        async with aclosing(self._client.request(do, session=self.name, **arguments)) as answers:
            async for answer in answers:
                if "result" in answer:
                    yield ExecutionResult.from_dict(answer["result"])
                    return
                for output in Progress.from_dict(answer["progress"]).outputs:
                    yield output

    def _check_attached(self) -> None:
        if self._held is None:
            raise Closed(f"Session {self.name!r} is not attached: use it as `async with`, or attach again.")
