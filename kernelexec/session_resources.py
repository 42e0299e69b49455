"""What a session is given before it lives: its workspace, its private directory, its notebook and its journal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from kernelexec.config import Config, system_refusal
from kernelexec.errors import InvalidWorkDir
from kernelexec.pool import Slot
from kernelexec.provisioning import Forks, Place, RuntimeDirectory, place_of
from kernelexec.provisioning.runtime.discovery import KEPT, LeftSession
from kernelexec.records.journal import Journal, journal_path
from kernelexec.records.log import ContainerLog
from kernelexec.records.notebook.recorder import Recorder, make_empty
from kernelexec.secrets import SecretStore
from kernelexec.workspace import Workspace
from kernelexec.workspace.contexts import contexts
from kernelexec.workspace.directory import check_allowed
from kernelexec.workspace.rmtree import remove_tree

logger = logging.getLogger("kernelexec")


@dataclass(frozen=True, slots=True)
class Belongings:
    """They belong to one session alone; whoever made them and has no session for them gives them up.

    A failure on the way to them leaves nothing of them open.
    """

    workspace: Workspace
    runtime: Path
    recorder: Recorder | None
    journal: Journal | None
    place: Place
    log: ContainerLog | None = None

    @classmethod
    def make(
        cls,
        name: str,
        work_dir: str | os.PathLike[str] | None,
        root: Path,
        config: Config,
        forks: Forks | None = None,
        slot: Slot | None = None,
        secrets: SecretStore | None = None,
    ) -> Belongings:
        """All that a session of that name needs. For a thread: the journal's owner before may be about to let go of it.

        An idle kernel's ``slot`` brings its own private directory, and in a container its workspace.

        Raises:
            InvalidWorkDir: the workspace is not within the allowed paths, is not there, cannot be made, is no directory to give
                to a container, or kernels could not write in it.
            InvalidConfig: what kernels are to see besides cannot be had, or there can be no log.
        """
        workspace = slot.workspace if slot is not None and slot.workspace is not None else _workspace(name, work_dir, config)
        own = work_dir is None and config.work_dir is None
        runtime = partial(_new_directory, root / name[:8].replace(".", "-")) if slot is None else slot.give_directory
        return cls._had(name, workspace, root, config, own=own, runtime=runtime, forks=forks, secrets=secrets)

    @classmethod
    def take_over(cls, left: LeftSession, root: Path, config: Config, secrets: SecretStore | None = None) -> Belongings:
        """What a dead owner's session had, in a root that is this process's now. For a thread, as ``make``.

        The notebook goes on where it is one that this session can write on; else a new one begins beside it.

        Raises:
            InvalidWorkDir: the workspace is gone, not allowed to this executor, or kernels could not write in it.
            InvalidConfig: what kernels are to see besides cannot be had, or there can be no log.
        """
        workspace = Workspace.at(left.workspace)
        if not workspace.path.is_relative_to(config.workspaces.resolve()):
            check_allowed(workspace.path, config.allowed_paths)
        had = partial(cls._had, left.name, workspace, root, config, own=False)
        return had(runtime=partial(_cleared, left), notebook=left.notebook, secrets=secrets)

    @classmethod
    def _had(
        cls,
        name: str,
        workspace: Workspace,
        root: Path,
        config: Config,
        *,
        own: bool,
        runtime: Callable[[], Path],
        notebook: Path | None = None,
        forks: Forks | None = None,
        secrets: SecretStore | None = None,
    ) -> Belongings:
        log = journal = recorder = None
        with ExitStack() as given_up:
            if config.log_dir is not None:
                log = ContainerLog(config.log_dir, name, workspace.path)
                given_up.callback(log.close)
            where = partial(place_of, config, session=name, workspace=workspace.path, root=root)
            place = where(own=own, forks=forks, secrets=secrets)
            workspace = Workspace(workspace.path, [context.path for context in contexts(config) if not context.single])
            directory = runtime()
            given_up.callback(_remove_empty, directory)
            if config.notebook:
                recorder = _recorder(name, workspace, notebook)
                given_up.callback(_finish, recorder)
            if config.journal:
                journal = Journal(journal_path(config.workspace, name), limit_bytes=config.capacity.journal_bytes)
            given_up.pop_all()
        return cls(workspace, directory, recorder, journal, place, log)

    def give_up(self) -> None:
        """Leave nothing of them behind but the workspace."""
        if self.journal is not None:
            self.journal.close()
        if self.log is not None:
            self.log.close()
        _finish(self.recorder)
        _remove_empty(self.runtime)


def _cleared(left: LeftSession) -> Path:
    """A session's private directory, without what only its dead owner had use for."""
    kernel = left.directory / str(left.handover.epoch)
    keep = {kernel.name, RuntimeDirectory(kernel).path.name, *KEPT}
    for path in left.directory.iterdir():
        if path.name not in keep:
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return left.directory


def _finish(recorder: Recorder | None) -> None:
    """Leave no notebook behind in which no cell was ever noted."""
    with suppress(OSError):
        if recorder is not None:
            recorder.finish()


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _workspace(name: str, work_dir: str | os.PathLike[str] | None, config: Config) -> Workspace:
    """The directory named for the session, else the one for all, else one of its own."""
    if work_dir is not None:
        check_allowed(work_dir, config.allowed_paths)
        found = Workspace.at(work_dir)
    elif config.work_dir is not None:
        check_allowed(config.work_dir, config.allowed_paths)  # before it is made
        found = Workspace.made(config.work_dir)
    else:
        found = Workspace.make(config.workspace, name)
    if work_dir is not None or config.work_dir is not None:
        check_allowed(found.path, config.allowed_paths)  # links may have changed meanwhile
    if config.isolation == "container" and (why := system_refusal(found.path)):
        message = f"No container gets {found.path} to write in: {why}. Name another work_dir."
        raise InvalidWorkDir(message)
    return found


def _recorder(name: str, workspace: Workspace, earlier: Path | None = None) -> Recorder | None:
    """The recorder of a notebook that no other session has; None where none can be made: that is no reason not to run.

    An ``earlier`` one in the workspace, of a session that this one is, is written on.
    """
    try:
        if earlier is not None and earlier.parent == workspace.path and (going_on := Recorder.of(earlier)) is not None:
            return going_on
        for path in _numbered(workspace.path / f"{name}.ipynb"):
            with suppress(FileExistsError):
                make_empty(path)
                return Recorder(path)
    except OSError:
        logger.exception("kernelexec.notebook_not_made", extra={"session": name})
    return None


def _new_directory(path: Path) -> Path:
    """A directory of that name, or of the first numbered one that is not taken: names are cut short, so they may be alike."""
    for candidate in _numbered(path):
        with suppress(FileExistsError):
            candidate.mkdir(mode=0o700)
            return candidate
    raise AssertionError


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
