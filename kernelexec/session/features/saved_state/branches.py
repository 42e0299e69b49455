"""Branches of a session: sessions with a copy of the parent's kernel, to go on apart from the parent or take its place."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from kernelexec.session.features.saved_state.checkpoints import SessionCheckpoints, read_refusal
from kernelexec.session.kernels.starts import WayBack, explain_failure
from kernelexec.session.kernels.supervisor import FIRST_CHECKPOINT
from kernelexec.session.lifecycle import run_in_thread
from kernelexec.workspace.directory import OURS
from kernelexec.workspace.environments import remove_unused
from kernelexec.workspace.rmtree import CALL_SECONDS, remove_within

if TYPE_CHECKING:
    from kernelexec.records.notebook.recorder import Recorder
    from kernelexec.workspace.workspace_copies import CopiedFiles, CopyDirectory

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


OpenBranch: TypeAlias = Callable[[Any, str, BranchOptions], Awaitable[Any]]
"""Opens a session, which is a layer above, for ``SessionBranches``."""


class SessionBranches:
    """The branches of a session, and the way of a branch back into the parent.

    Args:
        context: the state of the session.
        checkpoints: the session's checkpoints.
        record: the recorder of the session's notebook, if any.
        journal: the session's journal, if any.
        origin: the beginning of this session, if the session is a branch itself.
        open_branch: opens a session with a name and a beginning as returned by ``start``.
    """

    def __init__(
        self,
        context: SessionContext,
        checkpoints: SessionCheckpoints,
        record: Recorder | None,
        journal: Path | None,
        origin: BranchStart | None,
        open_branch: OpenBranch,
    ) -> None:
        self.context = context
        self.checkpoints = checkpoints
        self.record = record
        self.journal = journal
        self._inherited_cells = 0 if record is None else record.cell_count
        self._origin = origin
        self._open_branch = open_branch
        self.directories = SessionDirectories(context.runtime_dir)
        self.family: SessionBranches = self if origin is None else origin.parent.family
        """The branches of the first session. The directories of the whole family are in the first session's."""
        self._number = 0

    @property
    def point(self) -> BranchPoint | None:
        """The point of the parent at which a branch began; None for other sessions."""
        if (origin := self._origin) is None:
            return None
        return BranchPoint(origin.parent.context.name, origin.after, origin.parent.journal)

    async def start_kernel(self) -> bool:
        """Start the first kernel as a copy of the parent's kernel; return False if this session is no branch.

        Raises:
            KernelStartFailed: the copy did not start.
        """
        if (origin := self._origin) is None:
            return False
        start = self.context.kernels.python.start_branch
        await start(origin.host, origin.uid, origin.after, origin.notes, reseeds=origin.options.reseed)
        return True

    @property
    def config(self) -> Config:
        """The configuration, the same for branches."""
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

        A copy of this kernel replaces the parent's kernel, and the parent's cells since the branch point are undone. Files
        created or changed by this branch replace the parent's files; files removed here are removed there. The parent's
        notebook goes on with this branch's cells.

        Raises:
            CheckpointRefused: the kernel cannot be copied now; ``obstacles`` says why.
            InvalidRequest: this session is no branch or runs another cell by then, the parent is closed or has a kernel in
                another place, or the changed files exceed 1 GiB.
            InvalidTimeout, QueueFull, Closed: nothing has changed.
        """
        if (origin := self._origin) is None:
            raise InvalidRequest(f"Session {self.context.name!r} is no branch of another session.")
        parent = origin.parent
        session = f"Session {parent.context.name!r}"
        if parent.context.scope.is_stopping:
            raise InvalidRequest(f"{session}, of which this one is a branch, is closed.")

        async def choose() -> WayBack:
            if (first := self.context.queue.first) is not None and not first.internal:
                raise InvalidRequest(f"A cell runs in the branch {self.context.name!r}: promote it when that has ended.")
            ours, theirs = self.context.get_living_kernel(), parent.context.get_living_kernel()
            if ours.runtime.place != theirs.runtime.place:
                message = f"{session} has another kernel by now, in a place where this branch cannot go on."
                raise InvalidRequest(f"{message} Go on in the branch, or bring its values there by get and put.")
            # + 2, not + 1: the parent may make its next automatic checkpoint at this moment
            number = max(list_checkpoints(theirs.runtime.path), default=0) + 2
            copy_target = self._target_in(theirs, number, parent.context.kernels.backend.cwd, origin.temporary)
            call = protocol.checkpoint_source(_PROMOTED, copy_target)
            answer = await self.context.call_launcher(call, timeout, keeps_variables=True)
            if not isinstance(answer.get("checkpoint"), dict):
                raise read_refusal(answer)
            effect = "The state is that of the branch, which is still open, but not all its files"
            way = WayBack(number, effect=effect)
            try:
                way.change_files = await self._find_changed_files(origin, budget)
            except BaseException:
                await await_to_end(parent.checkpoints.drop(number))
                raise
            await self._add_records_to(parent, origin)
            return way

        budget = self.context.choose_timeout(timeout)
        # its cells end before the parent's wait for it
        await self.context.run_internally(protocol.NOTHING_SOURCE, budget, keeps_variables=True)
        way, restored = await parent.checkpoints.go_back(choose, timeout)
        await self.context.scope.stop()
        return restored if way.changed is None else replace(restored, notes=_describe_files(way.changed))

    async def start(self, name: str, options: BranchOptions) -> BranchStart:
        """Copy the kernel and the files in the session's turn, for a branch called ``name``. For errors see ``branch``."""
        start = BranchStart(self, name, options)
        try:
            await start.make()
        except BaseException:
            await await_to_end(start.discard())
            raise
        return start

    @property
    def source(self) -> Path | None:
        """The journal, or else the notebook; None without both."""
        return self.journal or (None if self.record is None else self.record.path)

    async def prepare_replay(self, name: str, options: BranchOptions) -> BranchStart:
        """Copy the files in the session's turn, for a branch called ``name`` in which the session's cells run again.

        Raises:
            InvalidRequest: there is no record of the cells, or the files cannot be copied.
        """
        if self.source is None:
            message = f"Session {self.context.name!r} keeps neither a journal nor a notebook: its cells cannot run again."
            raise InvalidRequest(message)
        start = BranchStart(self, name, options)
        await start.copy_files()
        return start

    def remove_directories(self) -> None:
        """Remove the ended session's directories without branches, and an unused virtual environment. For a thread."""
        remove_unused(self.context.workspace_path)
        self.checkpoints.remove_files()
        self.directories.leave()
        if self._origin is not None:
            self._origin.leave()

    def _next_name(self) -> str:
        self._number += 1
        return f"{self.context.name[:_NAME_CHARS]}-{self._number}"

    def _target_in(self, kernel: Kernel, number: int, cwd: str, temporary: Path | None) -> protocol.CopyTarget:
        """Return the place, among another kernel's checkpoints, of a copy of this kernel."""
        moves = [(self.context.kernels.backend.cwd, cwd)]
        if temporary is not None:
            runtime = kernel.runtime
            theirs = temporary.with_name(runtime.path.name) if runtime.is_of_branch else temporary.parent
            moves.append((str(temporary), str(theirs)))
        return _make_target(kernel.runtime.path, number, kernel.mark, moves)

    async def _find_changed_files(self, origin: BranchStart, seconds: float) -> Callable[[], Awaitable[CopiedFiles]] | None:
        """Find the changed files of this branch; return a function to bring them to the parent, None in a shared workspace.

        Raises:
            InvalidRequest: the files are too large, or cannot be read.
        """
        if (directory := origin.directory) is None or (copied := origin.files) is None:
            return None
        from kernelexec.workspace.workspace_copies import bring_back, find_changes  # noqa: PLC0415 - few sessions have branches

        ignore = frozenset({self.record.path.name} if self.record is not None else ())
        call = partial(find_changes, directory.fd, copied, ignore=ignore)
        try:
            changes = await self.context.read_in_thread(call)
        except OSError as exc:
            raise InvalidRequest(explain_failure("The files of the branch cannot be read", exc)) from exc
        target = origin.parent.context
        bring = partial(bring_back, directory.fd, target.workspace.path, copied, changes, seconds=seconds)
        return partial(target.read_in_thread, bring)

    async def _add_records_to(self, parent: SessionBranches, origin: BranchStart) -> None:
        """Add the cells of this branch to the parent's records. The parent's cells since the branch point are undone."""
        await self.context.queue.notebook_writer.flush()
        context = parent.context
        context.dispatch(BranchPromoted(context.name, self.context.name, origin.after, self.journal))
        if parent.record is not None and self.record is not None:
            extend = partial(parent.record.extend, self.record.path, self._inherited_cells)
            await context.read_in_thread(extend)


class BranchStart:
    """The beginning of a branch: its places and copies, made in sequence, and removed if the branch does not begin."""

    host: ReusableKernelHost
    """The private directory of the branch's kernels, and their provisioner."""
    uid: int
    """The user id of the branch's kernel."""

    def __init__(self, parent: SessionBranches, name: str, options: BranchOptions) -> None:
        self.parent, self.options = parent, options
        self._context, self._name = parent.context, name
        self._has_host = False
        self.directory: CopyDirectory | None = None
        """The branch's own workspace, open until the session's end; None for the parent's workspace."""
        self.files: CopiedFiles | None = None
        """The copied files; None for the parent's workspace."""
        self.temporary: Path | None = None
        """The branch's own directory for temporary files, if any."""
        self.after = ""
        """The execution id of the parent's last cell before the branch."""
        self.notes: tuple[str, ...] = ()
        """Notes for the branch's first result."""

    @property
    def workspace(self) -> Path:
        """The directory in which the branch works."""
        return self._context.workspace.path if self.directory is None else self.directory.path

    @property
    def within(self) -> Path:
        """The workspace of the parent, which contains or is this workspace."""
        return self._context.kernels.backend.workspace

    @property
    def notebook(self) -> Path | None:
        """The copy of the parent's notebook under the branch's own name, if any."""
        has_notebook = self.directory is not None and self.parent.record is not None
        return self.workspace / f"{self._name}.ipynb" if has_notebook else None

    async def copy_files(self) -> None:
        """Copy the files in the parent's turn, for a branch in which the parent's cells run again."""

        async def prepare(_: Kernel) -> str:
            await self._copy_files()
            return protocol.NOTHING_SOURCE

        budget = self._context.choose_timeout(self.options.timeout)
        run = partial(self._context.run_internally, prepare=prepare, keeps_variables=True)
        with _explain_failures():
            await run(protocol.NOTHING_SOURCE, budget)
        await self._finish(f"This is a branch of session {self._context.name!r}, whose cells have run again here.")

    async def make(self) -> None:
        """Make the places and copies in the parent's turn; raise the refusal of the launcher, or of a replaced workspace."""
        # join first: the parent may end during the call, and its directories must stay for the branch
        self.parent.family.directories.join()
        call = partial(self._context.call_launcher, prepare=self._prepare, keeps_variables=True)
        answer = await call(protocol.NOTHING_SOURCE, self.options.timeout)
        match answer:
            case {"checkpoint": {"cell": int(cell), "after": str(after)}}:
                self.after = read_text(after, _ID_CHARS) or ""
            case _:
                raise read_refusal(answer)
        intro = f"This is a branch of session {self._context.name!r}, as that was before its cell {cell}."
        await self._finish(intro, _SHARES if self._context.isolation == "container" else None)

    async def _finish(self, *notes: str | None) -> None:
        """Check that the copy's directory was not replaced, and begin the notes with these."""
        if self.directory is not None:
            with _explain_failures():
                await self._context.read_in_thread(self.directory.check)
        left_out = None if self.files is None else self.files.describe_left_out()
        self.notes = tuple(note for note in (*notes, left_out) if note is not None)

    async def _prepare(self, kernel: Kernel) -> str:
        """Make the places and copy the files; return the call to copy the kernel."""
        backend, mark = self._context.kernels.backend, secrets.token_hex(16)
        if not kernel.makes_checkpoints:
            raise CheckpointRefused("This kernel makes no checkpoints, so it has no branches.", {"limit": ("no checkpoints",)})
        with _explain_failures():
            try:
                self.host, self.uid, self._has_host = kernel.make_branch(mark), kernel.uid, True
            except KernelConnectionFailed as exc:
                raise CheckpointRefused(f"This kernel has no branches: {exc}.", {"limit": (str(exc),)}) from exc
            await self._copy_files()
            moves = [(backend.cwd, backend.to_kernel_path(str(self.workspace)))] if self.directory is not None else []
            if (pair := backend.add_temporary_directory(kernel.runtime, self.host.runtime)) is not None:
                self.temporary = pair[1]
                moves = [*(moves or [(backend.cwd, backend.cwd)]), (str(pair[0]), str(pair[1]))]
        target = _make_target(self.host.runtime.path, FIRST_CHECKPOINT, mark, moves)
        return protocol.checkpoint_source(_START, target)

    async def _copy_files(self) -> None:
        await self._context.queue.notebook_writer.flush()
        if self.options.files == "copy":
            await self._context.read_in_thread(self._copy)

    def _copy(self) -> None:
        """Copy the files; a copied kernel goes on in the copy of the notebook, under its own name. For a thread."""
        from kernelexec.session.features.saved_state.checkpoint_files import make_copy  # noqa: PLC0415 - few sessions have any

        above, record, has_copy = self.parent.family.context.workspace.path, self.parent.record, self.options.kernel == "copy"
        ignore = frozenset({record.path.name} if record is not None and not has_copy else ())
        directory, self.files = make_copy(self._context, above, _BRANCHES / self._name, ignore=ignore)
        self.options.copies.append(directory)
        # a descriptor of its own: ``open`` closes the descriptors in ``copies`` once all branches have begun
        self.directory = replace(directory, fd=os.dup(directory.fd)) if has_copy else directory
        if record is not None and has_copy:
            self.files.states.pop(record.path.name, None)
            with suppress(OSError):
                os.rename(record.path.name, f"{self._name}.ipynb", src_dir_fd=directory.fd, dst_dir_fd=directory.fd)

    async def discard(self) -> None:
        """Remove everything but the copy of files, the task of ``SessionBranches.open``."""
        if self._has_host:
            await self.host.remove()
        await anyio.to_thread.run_sync(self.leave)

    def leave(self) -> None:
        """Remove the ended branch's own places, and leave the family. For a thread."""
        if self.directory is not None:
            self.directory.close()
        if self.temporary is not None:  # in the parent's temporary directory, where a cell may go on writing: hence a limit
            remove_within(self.temporary.parent, Path(self.temporary.name), seconds=CALL_SECONDS)
        self.parent.family.directories.leave()


@contextmanager
def _explain_failures() -> Iterator[None]:
    """Raise ``InvalidRequest`` for a file that cannot be copied."""
    try:
        yield
    except OSError as exc:
        raise InvalidRequest(explain_failure(_NOT_MADE, exc)) from exc


def _describe_files(changed: CopiedFiles) -> tuple[str, ...]:
    """Return sentences on the files brought by a branch, and on the files left out."""
    count_files = sum(stat.S_ISREG(state[0]) for state in changed.states.values())
    came = f"{count_things('file', count_files)} of the branch came with it." if count_files else None
    return tuple(filter(None, (came, changed.describe_left_out())))


def _make_target(directory: Path, number: int, mark: str, moves: Sequence[tuple[str, str]]) -> protocol.CopyTarget:
    """Return the place of a checkpoint in a kernel's private directory."""
    owner = str(directory / "owner")
    return {"directory": str(directory), "number": number, "owner": owner, "mark": mark, "moves": list(moves)}
