"""Checkpoints of a session: stopped copies of the kernel's process, to go back to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kernelexec.cancellation import await_to_end
from kernelexec.errors import CheckpointRefused, InvalidRequest, KernelError, KernelexecError, did_you_mean
from kernelexec.events import Event, KernelChanged
from kernelexec.kernel import Kernel
from kernelexec.kernel.launcher_reports import explain_obstacles, read_obstacles
from kernelexec.launcher import protocol
from kernelexec.provisioning.runtime.unix_sockets import CheckpointSocket
from kernelexec.results import Restored
from kernelexec.results.json_values import is_count, read_seconds
from kernelexec.session.cells.cell_repeats import CellRepeats
from kernelexec.session.context import SessionContext
from kernelexec.session.kernels.starts import NO_REPEATED_CELLS, RepeatedCells, WayBack
from kernelexec.session.kernels.supervisor import KernelSupervisor
from kernelexec.session.kernels.verdict import describe_repeated
from kernelexec.session.lifecycle import run_in_thread

if TYPE_CHECKING:
    from kernelexec.session.features.saved_state.checkpoint_files import CheckpointFiles

_NAME_CHARS = 100
_FILES_STAY = "Files are as they are now; child processes have ended, and connections are closed."
_OTHERS_CONTAINER = "the kernel's container was started by another process"
_OTHERS_END = "Child processes have ended, and connections are closed."


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCheckpoint:
    """A checkpoint of a session's kernel. It holds all Python state, and costs the memory that has changed since."""

    _drop: Callable[[int], Awaitable[object]]
    number: int
    """The number, from 1 in each kernel."""
    name: str | None
    """The given name; None for an automatic one."""
    cell: int
    """The number of the next cell at that time, as in ``In [cell]``."""
    seconds: float | None = None
    """The duration of the copy, if known."""
    lineage: str | None = None
    """The name of the kernel's lineage: numbers repeat in later kernels and in other sessions."""

    def to_dict(self) -> dict[str, Any]:
        """Return number, name, cell, seconds and lineage as JSON types."""
        fields = ("number", "name", "cell", "seconds", "lineage")
        return {field: getattr(self, field) for field in fields}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return another process's checkpoint from ``to_dict``, to go back to; only the other process can drop it."""

        async def drop(_: int) -> None:
            raise InvalidRequest("This checkpoint is another process's.")

        number, lineage = fields.get("number"), fields.get("lineage")
        if not is_count(number) or not isinstance(lineage, str | None):
            raise InvalidRequest("A checkpoint has a number, and a text as its lineage.")
        return cls(drop, number, None, 0, lineage=lineage)

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        return f"<Checkpoint {self.number}{name} before [{self.cell}]>"

    async def drop(self) -> None:
        """End the checkpoint, and free its memory. Nothing happens to a missing checkpoint."""
        await self._drop(self.number)


class SessionCheckpoints:
    """The checkpoints of a session's Python kernel. The listed notebooks in the workspace stay unchanged."""

    def __init__(self, context: SessionContext, repeats: CellRepeats, list_notebooks: Callable[[], frozenset[str]]) -> None:
        self._context, self._repeats = context, repeats
        self._list_notebooks = list_notebooks
        self._files: CheckpointFiles | None = None

    @property
    def _supervisor(self) -> KernelSupervisor:
        return self._context.kernels.python

    async def checkpoint(
        self, name: str | None = None, *, files: bool = False, timeout: float | None = None
    ) -> AsyncCheckpoint:
        """Make a checkpoint: a stopped copy of the kernel with all its Python state, by a fork.

        A checkpoint takes its turn like a cell. Threads do not survive a fork, and both sides share connections, so a kernel
        with threads or connections is not copied.

        Args:
            name: a name by which ``restore`` finds it, 100 characters at most.
            files: also copy the workspace's files, for ``restore(..., files=True)``, up to 1 GiB and
                without the directories of tools such as ``.venv``. Where the file system shares blocks, as Btrfs and XFS do,
                the copy takes no space.
            timeout: seconds for it; the configuration's for cells by default.

        Raises:
            CheckpointRefused: the kernel cannot be copied now; ``obstacles`` says why.
            InvalidRequest, InvalidTimeout, QueueFull, Closed: nothing ran.
        """
        _check_files(files)
        if name is not None and (not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS):
            raise InvalidRequest(f"name={name!r:.120}: must be text of 1 to {_NAME_CHARS} characters, or None.")
        kernel = self._supervisor.kernel
        if kernel is not None and kernel.alive and not kernel.can_go_back:
            raise CheckpointRefused(f"There would be no way back to it: {_OTHERS_CONTAINER}.", {"limit": ("no checkpoints",)})
        if files:
            return await self._copy_with_files(name, timeout)
        answer = await self._context.call_launcher(protocol.checkpoint_source(name), timeout, keeps_variables=True)
        checkpoint, _ = await self._read_answer(answer)
        await self._remove_unused()
        return checkpoint

    def note_event(self, event: Event, /) -> None:
        """Remove the copies of files for checkpoints unknown to a new kernel. This is a hook of the session."""
        if self._files is not None and isinstance(event, KernelChanged) and event.change == "started":
            self._context.scope.tasks.start_soon(self._remove_unused)

    async def _remove_unused(self) -> None:
        if self._files is not None:
            await run_in_thread(self._files.remove_unused)

    async def _copy_with_files(self, name: str | None, timeout: float | None) -> AsyncCheckpoint:
        from kernelexec.session.features.saved_state.checkpoint_files import CheckpointFiles, FilesCopy  # noqa: PLC0415 - rare

        copies, copy = self._files or CheckpointFiles(self._context, self._list_notebooks), list[FilesCopy]()
        self._files = copies

        async def copy_files(kernel: Kernel) -> str:
            if not kernel.makes_checkpoints:
                raise CheckpointRefused("This kernel makes no checkpoints.", {"limit": ("no checkpoints",)})
            copy.append(await copies.copy())
            return protocol.checkpoint_source(name)

        try:
            call = partial(self._context.call_launcher, prepare=copy_files, keeps_variables=True)
            checkpoint, path = await self._read_answer(await call(protocol.NOTHING_SOURCE, timeout))
        except BaseException:
            if copy:
                await await_to_end(run_in_thread(copy[0].directory.remove))
            raise
        await await_to_end(run_in_thread(copies.keep, path, copy[0]))
        return checkpoint

    async def _read_answer(self, answer: Mapping[str, Any]) -> tuple[AsyncCheckpoint, Path]:
        """Return the checkpoint made by the launcher, and its socket's path; raise the launcher's refusal.

        Libraries' code runs in a copy before the copy waits, and may end the copy. So the socket is asked too.
        """
        match answer:
            case {"checkpoint": {"number": int(number), "seconds": seconds}}:
                for socket in await self._find(number):
                    return self._describe(socket, read_seconds(seconds)), socket.path
                raise CheckpointRefused("The copy of the kernel ended at once, or does not answer.", {"limit": ("no answer",)})
        raise read_refusal(answer)

    async def checkpoints(self) -> tuple[AsyncCheckpoint, ...]:
        """Return the checkpoints that are there, the oldest first; none without a living kernel."""
        self._context.scope.check_open()
        return tuple(map(self._describe, reversed(await self._find())))

    async def _find(self, number: int | None = None) -> list[CheckpointSocket]:
        """Return the answering checkpoints, or only the given number, the newest first, with closed connections."""
        kernel = self._supervisor.kernel
        sockets = await kernel.find_checkpoints(number) if kernel is not None else []
        for socket in sockets:
            socket.close()
        return sockets

    def _describe(self, socket: CheckpointSocket, seconds: float | None = None) -> AsyncCheckpoint:
        lineage = self._supervisor.lineage.name

        async def drop(number: int) -> None:
            if lineage == self._supervisor.lineage.name:  # else the number is another one's, or none's
                await self.drop(number)

        return AsyncCheckpoint(drop, socket.number, socket.name, socket.cell, seconds, lineage)

    async def drop(self, number: int) -> None:
        """End a checkpoint."""
        kernel = self._supervisor.kernel
        for socket in await kernel.find_checkpoints(number) if kernel is not None else ():
            await socket.drop()
            socket.close()
        await self._remove_unused()

    async def restore(self, saved: object, timeout: float | None, *, files: bool) -> Restored:
        """Go back to a checkpoint, given as such, by number, or by name (the newest with that name)."""
        _check_files(files)
        if not (isinstance(saved, AsyncCheckpoint | str) or is_count(saved)):
            what = "a result of `checkpoint()` or `snapshot()`, or the name or number of a checkpoint"
            raise InvalidRequest(f"saved={saved!r:.100} must be {what}.")

        async def find() -> WayBack:
            return WayBack(await self._find_number(saved))

        _, restored = await self._go_to(find, timeout, files=files)
        return restored

    async def _find_number(self, saved: AsyncCheckpoint | str | int) -> int:
        if isinstance(saved, AsyncCheckpoint):
            if saved.lineage not in (None, self._supervisor.lineage.name):
                raise InvalidRequest(f"Checkpoint {saved.number} is of an earlier kernel, or of another session.")
            return saved.number
        if not isinstance(saved, str):
            return int(saved)
        for checkpoint in (present := await self._find()):
            if checkpoint.name == saved:
                return checkpoint.number
        if saved.isascii() and saved.isdecimal():
            return int(saved)
        near = did_you_mean(saved, [checkpoint.name for checkpoint in reversed(present) if checkpoint.name is not None])
        raise InvalidRequest(f"There is no checkpoint {saved!r:.100}{near}: {await self._list()}.")

    async def _go_to(
        self, find: Callable[[], Awaitable[WayBack]], timeout: float | None, *, files: bool
    ) -> tuple[WayBack, Restored]:
        """Go back by the way found in the session's turn, with ``files`` to the checkpoint's files too."""

        async def choose() -> WayBack:
            way = await find()
            for socket in await self._find(way.number) if files else ():
                if (copies := self._files) is None or (copy := copies.find(socket.path)) is None:
                    message = f"Checkpoint {way.number} has no files: checkpoint(files=True) makes one that has."
                    raise InvalidRequest(f"{message} Nothing has changed.")
                way.change_files = partial(copies.put_back, copy)
                way.effect = f"The state is that of checkpoint {way.number}, but not all of its files"
            return way

        way, restored = await self.go_back(choose, timeout)
        if (changed := way.changed) is None:
            return way, replace(restored, notes=(_FILES_STAY,))
        paths = tuple(sorted({*changed.states, *changed.removed}))
        return way, replace(restored, files=paths, notes=(*changed.describe_return(), _OTHERS_END))

    def remove_files(self) -> None:
        """Remove the copies of files, at the session's end. For a thread."""
        if self._files is not None:
            self._files.remove_all()

    async def go_back(self, choose: Callable[[], Awaitable[WayBack]], timeout: float | None) -> tuple[WayBack, Restored]:
        """Replace the kernel by a copy of the checkpoint chosen by ``choose``, in the session's turn."""
        budget = self._context.choose_timeout(timeout)
        before, ways = set[str](), list[WayBack]()

        async def choose_in_turn() -> WayBack:
            ways.append(await choose())
            before.update(self._supervisor.known_names)
            return ways[0]

        _, result = await self._context.run_internally(protocol.NOTHING_SOURCE, budget, choose_checkpoint=choose_in_turn)
        result.raise_for_error()
        names = self._supervisor.known_names
        return ways[0], Restored(tuple(sorted(names)), gone=tuple(sorted(before - set(names))))

    async def undo(self, cells: int = 1, *, files: bool = False, timeout: float | None = None) -> Restored:
        """Go back to the state before the last ``cells`` cells.

        Variables, imports, the current directory and the environment are restored. Without a checkpoint of exactly this
        state, the session goes back to the newest earlier checkpoint, and the cells between run again, if safe. With
        ``files`` the workspace's files are restored from the checkpoint's copy. ``cells`` of the result is the number of
        undone cells.

        Raises:
            InvalidRequest: no checkpoint is old enough, a cell after the checkpoint is not safe to repeat, or the checkpoint
                has no files.
            InvalidTimeout, QueueFull, Closed: nothing ran.
        """
        _check_files(files)
        if not is_count(cells) or cells < 1:
            raise InvalidRequest(f"cells={cells!r}: must be a whole number of at least 1.")
        present = 0
        if self._supervisor.kernel is None:
            self._context.get_living_kernel()  # raises

        async def find() -> WayBack:
            nonlocal present
            kernel = await self._supervisor.acquire()  # one that has died has gone back already
            present, until = kernel.next_cell, kernel.next_cell - cells
            for socket in await self._find():
                if socket.cell <= until and self._supervisor.lineage.has(socket.number):
                    plan, _, _ = await self._repeats.plan(socket.cell, socket.after, until)
                    if plan.undone < until or (plan.obstacle and socket.cell < until):
                        raise InvalidRequest(_refuse_undo(plan, cells, present))
                    return WayBack(socket.number, until)
            last = "cell" if cells == 1 else f"{cells} cells"
            raise InvalidRequest(f"There is no checkpoint of the state before the last {last}: {await self._list()}.")

        way, restored = await self._go_to(find, timeout, files=files)
        repeated = way.repeated or NO_REPEATED_CELLS
        notes = (f"{describe_repeated(repeated).capitalize()} since the checkpoint.",) if repeated.count else ()
        if repeated.has_failed or repeated.obstacle:
            notes = (*notes, f"Cell [{repeated.undone}] and those after it are undone: {repeated.obstacle}.")
        return replace(restored, cells=present - repeated.undone, notes=(*restored.notes, *notes))

    async def _list(self) -> str:
        if present := await self.checkpoints():
            return ", ".join(map(repr, present))
        kernel, mode = self._supervisor.kernel, self._context.config.checkpoints
        if kernel is not None and not kernel.has_place_for_checkpoints:
            return "kernels make none here"
        if kernel is not None and not kernel.can_go_back:
            return f"there is none, since {_OTHERS_CONTAINER}"
        if mode not in ("auto", "each"):
            by_call = "" if mode == "off" else "checkpoint() makes one, and "
            return f"{by_call}Config(checkpoints='auto') makes one after each cell"
        obstacles = read_obstacles(kernel.obstacles) if kernel is not None else {}
        return f"there is none, since {explain_obstacles(obstacles).removesuffix('.')}" if obstacles else "there is none"


def _refuse_undo(plan: RepeatedCells, cells: int, present: int) -> str:
    """Return the reason for an undo of more cells than requested."""
    what = "the last cell" if cells == 1 else f"the last {cells} cells"
    return (
        f"Only {what} cannot be undone: the newest checkpoint before is that before cell [{plan.first}], and cell"
        f" [{plan.undone}] cannot run again: {plan.obstacle}. undo({present - plan.first}) goes back to that checkpoint."
    )


def read_refusal(answer: Mapping[str, Any]) -> KernelexecError:
    """Return the error of a kernel without a new checkpoint, from the kernel's unvalidated answer."""
    obstacles = read_obstacles(answer.get("obstacles"))
    if not obstacles:
        return KernelError("The kernel did not say whether there is a checkpoint.")
    return CheckpointRefused(f"The kernel cannot be copied now: {explain_obstacles(obstacles)}", obstacles)


def _check_files(files: object) -> None:
    if not isinstance(files, bool):
        raise InvalidRequest(f"files={files!r:.100}: must be True or False.")
