"""Branches of a session: sessions that begin with a copy of its kernel and go their own ways, and may take its place."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, get_args

import anyio

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.errors import (
    CheckpointRefused,
    InvalidRequest,
    KernelConnectionFailed,
    KernelError,
    KernelexecError,
    did_you_mean,
)
from kernelexec.events import BranchPoint, BranchPromoted
from kernelexec.kernel import Kernel
from kernelexec.kernel.process import ReusableKernelHost
from kernelexec.launcher import protocol
from kernelexec.provisioning.runtime.owned_directory import SessionDirectories
from kernelexec.provisioning.runtime.unix_sockets import list_checkpoints
from kernelexec.results import Restored
from kernelexec.results.json_values import is_count, read_text
from kernelexec.results.one_line import count_things
from kernelexec.session.context import SessionContext
from kernelexec.session.features.saved_state.checkpoints import SessionCheckpoints, explain_failure, read_refusal
from kernelexec.session.kernels.starts import FIRST_CHECKPOINT, BranchFamily, BranchStart, WayBack
from kernelexec.session.lifecycle import run_in_thread
from kernelexec.workspace.directory import OURS
from kernelexec.workspace.environments import remove_unused
from kernelexec.workspace.rmtree import CALL_SECONDS, remove_within

if TYPE_CHECKING:
    from kernelexec.records.notebook.recorder import Recorder
    from kernelexec.workspace.workspace_copies import BranchChanges, CopiedFiles, CopyDirectory

BranchFileMode = Literal["copy", "shared"]
"""Whether a branch works in a copy of the workspace, or in the same one."""
BranchKernelMode = Literal["copy", "replay"]
"""Whether the kernel of a branch is a copy beside the other one, or a new one in which the recorded cells run again."""

#: Where the workspaces of branches are in that of their session: tools that list files leave the first directory out.
_BRANCHES = Path(OURS, "branches")
#: The name of a branch's first checkpoint, and of the one by which it takes its parent's place.
_START, _PROMOTED = "start", "promoted"
_NOT_MADE = "The branch cannot be made"
_SHARES = "It has the memory and the processors of its container together with the kernel that it was forked of."


_BRANCHES_MAX, _NAME_CHARS, _ID_CHARS = 1000, 56, 64


class BranchKeywords(TypedDict, total=False):
    """How a branch begins."""

    files: BranchFileMode
    """``copy``, the default, for a copy of the workspace's files in its directory ``.kernelexec/branches``, up to
    1 GiB, which takes no space where the file system shares blocks; ``shared`` for the same workspace."""
    kernel: BranchKernelMode
    """``copy``, the default, for a copy of the kernel; ``replay`` for a new kernel, in containers in a container of its own, in
    which the cells of the journal or notebook run again; ``session.replay`` is the report. Such a branch cannot be promoted."""
    reseed: bool
    """Whether random numbers differ from those of the session and of other branches; True by default."""
    timeout: float | None
    """Seconds for the copy of the kernel; the configuration's for cells by default."""


@dataclass(frozen=True, slots=True)
class BranchOptions:
    """``BranchKeywords`` with the defaults, checked."""

    files: BranchFileMode = "copy"
    kernel: BranchKernelMode = "copy"
    reseed: bool = True
    timeout: float | None = None
    copies: list[CopyDirectory] = field(init=False, default_factory=list)
    """The copies of files for these branches, until all of them have begun."""

    def __post_init__(self) -> None:
        for name, value, modes in (("files", self.files, BranchFileMode), ("kernel", self.kernel, BranchKernelMode)):
            if value not in get_args(modes):
                raise InvalidRequest(f"{name}={value!r:.100}: must be one of {', '.join(get_args(modes))}.")
        if not isinstance(self.reseed, bool):
            raise InvalidRequest(f"reseed={self.reseed!r:.100}: must be True or False.")


@dataclass(frozen=True, slots=True)
class BranchOrigin:
    """What a branch begins with, and the branches of the session that it is one of."""

    start: BranchStart
    parent: SessionBranches
    directory: CopyDirectory | None
    """Its workspace, open until the session ends; None if that is the parent's."""
    discard: Callable[[], Awaitable[None]]
    """Removes everything but the copy of files, if the branch does not begin."""


OpenBranch: TypeAlias = Callable[[Any, str, BranchOptions], Awaitable[Any]]
"""Opens a session, which is a layer above, for ``SessionBranches``."""


async def open_no_branch(parent: SessionBranches, name: str, options: BranchOptions) -> Any:  # noqa: ANN401, ARG001 - as above
    """Refuse: only an executor opens sessions."""
    raise InvalidRequest("This session belongs to no executor, which would open the branch.")


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """What a branch begins with in which the cells of another session run again."""

    workspace: Path
    within: Path
    """The workspace that contains this one, or the same."""
    source: Path
    """The journal or notebook."""
    notes: tuple[str, ...]


class SessionBranches:
    """The branches of one session, and the way of a branch back into its parent.

    Args:
        context: the state of the session.
        checkpoints: its checkpoints.
        record: its notebook's recorder, if it has one.
        journal: its journal, if it has one.
        origin: where it branched off, if it is a branch itself.
        open_branch: opens a session of that name, which begins with what ``start`` returns.
    """

    def __init__(
        self,
        context: SessionContext,
        checkpoints: SessionCheckpoints,
        record: Recorder | None,
        journal: Path | None,
        origin: BranchOrigin | None,
        open_branch: OpenBranch,
    ) -> None:
        self.context = context
        self.checkpoints = checkpoints
        self.record = record
        self.journal = journal
        self._inherited_cells = 0 if record is None else record.cell_count
        self._origin = origin
        self._open_branch = open_branch
        self._own = SessionDirectories(context.runtime_dir)
        self._family = BranchFamily(self._own, context.workspace.path) if origin is None else origin.start.family
        self._number = 0

    @property
    def start_point(self) -> BranchStart | None:
        """What the session begins with, if it is a branch."""
        return None if self._origin is None else self._origin.start

    @property
    def point(self) -> BranchPoint | None:
        """Where the session began in another one, if it is a branch."""
        if self._origin is None:
            return None
        return BranchPoint(self._origin.start.parent, self._origin.start.after, self._origin.parent.journal)

    @property
    def config(self) -> Config:
        """The configuration, which branches have too."""
        return self.context.config

    async def open(self, name: str | None, n: int | None, **keywords: Unpack[BranchKeywords]) -> Any:  # noqa: ANN401 - sessions
        """Open a branch, or several: see ``AsyncSession.branch``."""
        known = BranchKeywords.__annotations__
        for unknown in keywords.keys() - known.keys():
            raise InvalidRequest(f"branch() has no argument {unknown!r}{did_you_mean(unknown, known)}.")
        options = BranchOptions(**keywords)
        if n is not None and (not is_count(n) or not 0 < n <= _BRANCHES_MAX):
            raise InvalidRequest(f"n={n!r:.100}: must be a whole number of 1 to {_BRANCHES_MAX}.")
        opened: list[Any] = []

        async def give_up() -> None:
            for session in opened:
                await session.close()
            for directory in options.copies:
                await run_in_thread(directory.remove)

        try:
            while len(opened) < (n or 1):
                branch_name = (name if n is None else f"{name}-{len(opened) + 1}") if name else self._next_name()
                opened.append(await self._open_branch(self, branch_name, options))
        except BaseException:
            await await_to_end(give_up())
            raise
        for directory in options.copies:
            directory.close()
        return opened[0] if n is None else tuple(opened)

    async def promote(self, *, timeout: float | None = None) -> Restored:
        """Make this branch's state that of the session that it was branched off, and close the branch.

        That session's kernel is replaced by a copy of this one, and its cells since then are undone. Files that this branch has
        created or changed replace the session's, and those that it has removed are removed there. The session's notebook goes
        on with this branch's cells.

        Raises:
            CheckpointRefused: the kernel cannot be copied now; ``obstacles`` says why.
            InvalidRequest: this session is no branch, or runs another cell by then, the other one is closed, or has a kernel in
                another place, or the changed files exceed 1 GiB.
            InvalidTimeout, QueueFull, Closed: nothing has changed.
        """
        if self._origin is None:
            raise InvalidRequest(f"Session {self.context.name!r} is no branch of another session.")
        origin, start, parent = self._origin, self._origin.start, self._origin.parent
        if parent.context.scope.is_stopping:
            raise InvalidRequest(f"Session {start.parent!r}, of which this one is a branch, is closed.")
        files: _FilesOfPromotion | None = None

        async def choose() -> WayBack:
            nonlocal files
            if (first := self.context.queue.first) is not None and not first.internal:
                raise InvalidRequest(f"A cell runs in the branch {self.context.name!r}: promote it when that has ended.")
            ours, theirs = self.context.get_living_kernel(), parent.context.get_living_kernel()
            if ours.runtime.place != theirs.runtime.place:
                message = f"Session {start.parent!r} has another kernel by now, in a place where this branch cannot go on."
                raise InvalidRequest(f"{message} Go on in the branch, or bring its values there by get and put.")
            number = max(list_checkpoints(theirs.runtime.path), default=0) + 2  # the next one may be made at this moment
            copy_target = self._target_in(theirs, number, parent.context.kernels.backend.cwd, start.temporary)
            call = protocol.checkpoint_source(_PROMOTED, copy_target)
            answer = await self.context.call_launcher(call, timeout, keeps_variables=True)
            if not isinstance(answer.get("checkpoint"), dict):
                raise read_refusal(answer)
            try:
                files = await self._find_changed_files(origin, timeout)
            except BaseException:
                await await_to_end(parent.checkpoints.drop(number))
                raise
            await self._add_records_to(parent, start)
            return WayBack(number, bring_files=None if files is None else files.bring)

        budget = self.context.choose_timeout(timeout)
        # its cells end before the parent's wait for it
        await self.context.run_internally(protocol.NOTHING_SOURCE, budget, keeps_variables=True)
        restored = await parent.checkpoints.go_back(choose, timeout)
        await self.context.scope.stop()
        notes = () if files is None or files.changed is None else _describe_files(files.changed)
        return replace(restored, notes=(*notes, *restored.notes[1:]))

    async def start(self, name: str, options: BranchOptions) -> BranchOrigin:
        """Copy the kernel and the files in the session's turn, for a branch of that name. Errors are those of ``branch``."""
        beginning = _Beginning(self.context, self._family, name, options, self.record)
        call = partial(self.context.call_launcher, prepare=beginning.prepare, keeps_variables=True)
        try:
            answer = await call(protocol.NOTHING_SOURCE, options.timeout)
            return BranchOrigin(await beginning.finish(answer), self, beginning.directory, beginning.discard)
        except BaseException:
            await await_to_end(beginning.discard())
            raise

    async def prepare_replay(self, name: str, options: BranchOptions) -> ReplayStart:
        """Copy the files in the session's turn, for a branch of that name in which its cells run again.

        Raises:
            InvalidRequest: there is no record of the cells, or the files cannot be copied.
        """
        notebook = None if self.record is None else self.record.path
        if (source := self.journal or notebook) is None:
            message = f"Session {self.context.name!r} keeps neither a journal nor a notebook: its cells cannot run again."
            raise InvalidRequest(message)
        left_out: list[str | None] = []

        def copy_in_thread() -> None:
            ignore = frozenset({notebook.name} if notebook is not None else ())
            directory, files = _copy_files(self.context, self._family.workspace, name, ignore)
            options.copies.append(directory)
            left_out.append(files.describe_left_out())

        async def copy_files(_: Kernel) -> str:
            await self.context.queue.notebook_writer.flush()
            if options.files == "copy":
                await self.context.read_in_thread(copy_in_thread)
            return protocol.NOTHING_SOURCE

        budget = self.context.choose_timeout(options.timeout)
        run = partial(self.context.run_internally, prepare=copy_files, keeps_variables=True)
        try:
            await run(protocol.NOTHING_SOURCE, budget)
            for directory in options.copies[-1:]:
                await self.context.read_in_thread(directory.check)
        except OSError as exc:
            raise InvalidRequest(explain_failure(_NOT_MADE, exc)) from exc
        workspace = options.copies[-1].path if options.copies else self.context.workspace.path
        intro = f"This is a branch of session {self.context.name!r}, whose cells have run again here."
        return ReplayStart(workspace, self.context.kernels.backend.workspace, source, notes=(intro, *filter(None, left_out)))

    def remove_directories(self) -> None:
        """Remove the ended session's directories that no branch uses, its virtual environment if unused too. For a thread."""
        remove_unused(self.context.workspace_path)
        self.checkpoints.remove_files()
        self._own.leave()
        if self._origin is not None:
            if self._origin.directory is not None:
                self._origin.directory.close()
            if self._origin.start.temporary is not None:
                _remove_temporary(self._origin.start.temporary)
            self._family.directories.leave()

    def _next_name(self) -> str:
        self._number += 1
        return f"{self.context.name[:_NAME_CHARS]}-{self._number}"

    def _target_in(self, kernel: Kernel, number: int, cwd: str, temporary: Path | None) -> protocol.CopyTarget:
        """Return the place of a checkpoint of another kernel that is to have a copy of this one."""
        moves = [(self.context.kernels.backend.cwd, cwd)]
        if temporary is not None:
            runtime = kernel.runtime
            theirs = temporary.with_name(runtime.path.name) if runtime.is_of_branch else temporary.parent
            moves.append((str(temporary), str(theirs)))
        return _make_target(kernel.runtime.path, number, kernel.mark, moves)

    async def _find_changed_files(self, origin: BranchOrigin, timeout: float | None) -> _FilesOfPromotion | None:
        """Find the changed files of this branch, for its parent; None if they work in one workspace.

        Raises:
            InvalidRequest: they are too large, or cannot be read.
        """
        if (directory := origin.directory) is None or (copied := origin.start.files) is None:
            return None
        from kernelexec.workspace.workspace_copies import find_changes  # noqa: PLC0415 - few sessions have branches

        ignore = frozenset({self.record.path.name} if self.record is not None else ())
        call = partial(find_changes, directory.fd, copied, ignore=ignore)
        try:
            changes = await self.context.read_in_thread(call)
        except OSError as exc:
            raise InvalidRequest(explain_failure("The files of the branch cannot be read", exc)) from exc
        return _FilesOfPromotion(origin.parent.context, directory, copied, changes, self.context.choose_timeout(timeout))

    async def _add_records_to(self, parent: SessionBranches, start: BranchStart) -> None:
        """Add the cells of this branch to the records of its parent, whose cells since the branch began are undone."""
        await self.context.queue.notebook_writer.flush()
        context = parent.context
        context.dispatch(BranchPromoted(context.name, self.context.name, start.after, self.journal))
        if parent.record is not None and self.record is not None:
            extend = partial(parent.record.extend, self.record.path, self._inherited_cells)
            await context.read_in_thread(extend)


class _FilesOfPromotion:
    """The changed files of a branch, on their way to its parent's workspace."""

    def __init__(
        self, parent: SessionContext, branch: CopyDirectory, copied: CopiedFiles, changes: BranchChanges, seconds: float
    ) -> None:
        self._parent, self._branch = parent, branch
        self._copied, self._changes, self._seconds = copied, changes, seconds
        self.changed: CopiedFiles | None = None
        """The files that are new or changed there by now."""

    async def bring(self) -> KernelexecError | None:
        """Bring them; return the error if that fails."""
        from kernelexec.workspace.workspace_copies import bring_back  # noqa: PLC0415 - as above

        target = self._parent.workspace.path
        call = partial(bring_back, self._branch.fd, target, self._copied, self._changes, seconds=self._seconds)
        try:
            self.changed = await self._parent.read_in_thread(call)
        except OSError as exc:
            failure = explain_failure("The state is that of the branch, but not all its files", exc)
            return KernelError(f"{failure} The branch is still open.")
        return None


class _Beginning:
    """What is made for a branch, one after the other, and removed if it does not begin."""

    def __init__(
        self, context: SessionContext, family: BranchFamily, name: str, options: BranchOptions, record: Recorder | None
    ) -> None:
        self._context, self._family, self._name, self._options = context, family, name, options
        self._notebook, self._notebook_name = None if record is None else record.path, f"{name}.ipynb"
        family.directories.join()
        self._kernel: Kernel | None = None
        self._host: ReusableKernelHost | None = None
        self.directory: CopyDirectory | None = None
        """The branch's workspace, if that is a copy."""
        self._files: CopiedFiles | None = None
        self._temporary: Path | None = None

    async def prepare(self, kernel: Kernel) -> str:
        """Make the places and copy the files, in the session's turn; return the call that copies the kernel."""
        backend, mark = self._context.kernels.backend, secrets.token_hex(16)
        if not kernel.makes_checkpoints:
            raise CheckpointRefused("This kernel makes no checkpoints, so it has no branches.", {"limit": ("no checkpoints",)})
        self._kernel = kernel
        try:
            self._host = kernel.make_branch(mark)
            moves = []
            if self._options.files == "copy":
                await self._context.queue.notebook_writer.flush()
                await self._context.read_in_thread(self._copy)
                moves.append((backend.cwd, backend.to_kernel_path(str(self._workspace))))
            if (pair := backend.add_temporary_directory(kernel.runtime, self._host.runtime)) is not None:
                self._temporary = pair[1]
                moves = [*(moves or [(backend.cwd, backend.cwd)]), (str(pair[0]), str(pair[1]))]
        except KernelConnectionFailed as exc:
            raise CheckpointRefused(f"This kernel has no branches: {exc}.", {"limit": (str(exc),)}) from exc
        except OSError as exc:
            raise InvalidRequest(explain_failure(_NOT_MADE, exc)) from exc
        target = _make_target(self._host.runtime.path, FIRST_CHECKPOINT, mark, moves)
        return protocol.checkpoint_source(_START, target)

    @property
    def _workspace(self) -> Path:
        return self._context.workspace.path if self.directory is None else self.directory.path

    def _copy(self) -> None:
        """Copy the files; the branch goes on in the copy of the notebook, under its own name. For a thread."""
        self.directory, self._files = _copy_files(self._context, self._family.workspace, self._name)
        self._options.copies.append(replace(self.directory, fd=os.dup(self.directory.fd)))
        if self._notebook is not None:
            self._files.states.pop(self._notebook.name, None)
            names, top = (self._notebook.name, self._notebook_name), self.directory.fd
            with suppress(OSError):
                os.rename(*names, src_dir_fd=top, dst_dir_fd=top)

    async def finish(self, answer: Mapping[str, Any]) -> BranchStart:
        """Return the beginning of the branch; raise a refusal of the launcher, or of a workspace that was replaced."""
        match answer:
            case {"checkpoint": {"cell": int(cell), "after": str(after)}}:
                pass
            case _:
                raise read_refusal(answer)
        assert self._host is not None
        assert self._kernel is not None
        if self.directory is not None:
            try:
                await self._context.read_in_thread(self.directory.check)
            except OSError as exc:
                raise InvalidRequest(explain_failure(_NOT_MADE, exc)) from exc
        left_out = None if self._files is None else self._files.describe_left_out()
        shares = _SHARES if self._context.isolation == "container" else None
        intro = f"This is a branch of session {self._context.name!r}, as that was before its cell {cell}."
        return BranchStart(
            parent=self._context.name,
            host=self._host,
            uid=self._kernel.uid,
            copy_options={"reseed": self._options.reseed},
            family=self._family,
            workspace=self._workspace,
            within=self._context.kernels.backend.workspace,
            files=self._files,
            notebook=None if self.directory is None or self._notebook is None else self._workspace / self._notebook_name,
            temporary=self._temporary,
            after=read_text(after, _ID_CHARS) or "",
            cell=cell,
            notes=tuple(note for note in (intro, shares, left_out) if note is not None),
        )

    async def discard(self) -> None:
        """Remove everything that was made but the copy of files, which ``SessionBranches.open`` removes."""
        if self._host is not None:
            await self._host.remove()
        if self.directory is not None:
            self.directory.close()
        if self._temporary is not None:
            await anyio.to_thread.run_sync(_remove_temporary, self._temporary)
        await anyio.to_thread.run_sync(self._family.directories.leave)


def _remove_temporary(directory: Path) -> None:
    """Remove a branch's temporary directory, which is in that of its parent, where a cell may go on writing. For a thread."""
    remove_within(directory.parent, Path(directory.name), seconds=CALL_SECONDS)


def _copy_files(
    context: SessionContext, above: Path, name: str, ignore: frozenset[str] = frozenset()
) -> tuple[CopyDirectory, CopiedFiles]:
    """Copy a session's workspace into a new directory ``above``, another one, without the names to ``ignore``. For a thread."""
    from kernelexec.workspace.workspace_copies import copy_workspace, make_copy_directory  # noqa: PLC0415 - as above

    directory = make_copy_directory(above, _BRANCHES, name)
    try:
        return directory, copy_workspace(context.workspace.path, directory.fd, ignore=ignore)
    except BaseException:
        directory.remove()
        raise


def _describe_files(changed: CopiedFiles) -> tuple[str, ...]:
    """Return sentences on the files that came with a branch, and on those that did not."""
    count_files = sum(stat.S_ISREG(state[0]) for state in changed.states.values())
    came = f"{count_things('file', count_files)} of the branch came with it." if count_files else None
    return tuple(filter(None, (came, changed.describe_left_out())))


def _make_target(directory: Path, number: int, mark: str, moves: Sequence[tuple[str, str]]) -> protocol.CopyTarget:
    """Return the place of a checkpoint in a kernel's private directory."""
    owner = str(directory / "owner")
    return {"directory": str(directory), "number": number, "owner": owner, "mark": mark, "moves": list(moves)}
