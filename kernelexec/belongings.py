"""What a session is given before it lives: its workspace, its private directory, its notebook and its journal."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kernelexec.config import Config, system_refusal
from kernelexec.containerlog import ContainerLog
from kernelexec.errors import InvalidWorkDir
from kernelexec.journal import Journal, journal_path
from kernelexec.provisioning import Place, place_of
from kernelexec.provisioning.register import KEPT, LeftSession
from kernelexec.provisioning.trees import remove_tree
from kernelexec.recorder import Recorder, make_empty
from kernelexec.workspace import Workspace

logger = logging.getLogger("kernelexec")


@dataclass(frozen=True, slots=True)
class Belongings:
    """They belong to one session alone; whoever made them and has no session for them gives them up."""

    workspace: Workspace
    runtime: Path
    recorder: Recorder | None
    journal: Journal | None
    place: Place
    log: ContainerLog | None = None

    @classmethod
    def make(cls, name: str, work_dir: str | os.PathLike[str] | None, root: Path, config: Config) -> Belongings:
        """All that a session of that name needs. For a thread: the journal's owner before may be about to let go of it.

        Raises:
            InvalidWorkDir: the workspace is not there, cannot be made, is no directory to give to a container, or kernels could
                not write in it.
            InvalidConfig: what kernels are to see besides cannot be had, or there can be no log.
        """
        workspace = _workspace(name, work_dir, config)
        log = None if config.log_dir is None else ContainerLog(config.log_dir, name, workspace.path)
        own = work_dir is None and config.work_dir is None
        place = place_of(config, session=name, workspace=workspace.path, root=root, own=own)
        runtime = _new_directory(root / name[:8].replace(".", "-"))
        recorder = _recorder(name, workspace) if config.notebook else None
        limit = config.capacity.journal_bytes
        journal = Journal(journal_path(config.workspace, name), limit_bytes=limit) if config.journal else None
        return cls(workspace, runtime, recorder, journal, place, log)

    @classmethod
    def take_over(cls, left: LeftSession, root: Path, config: Config) -> Belongings:
        """What a dead owner's session had, in a root that is this process's now. For a thread, as ``make``.

        The notebook goes on where it is one that this session can write on; else a new one begins beside it.

        Raises:
            InvalidWorkDir: the workspace is gone.
            InvalidConfig: there can be no log.
        """
        workspace = Workspace.at(left.workspace)
        log = None if config.log_dir is None else ContainerLog(config.log_dir, left.name, workspace.path)
        keep = {str(left.handover.epoch), *KEPT}
        for path in left.directory.iterdir():
            if path.name not in keep:
                remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        recorder = _recorder(left.name, workspace, left.notebook) if config.notebook else None
        limit = config.capacity.journal_bytes
        journal = Journal(journal_path(config.workspace, left.name), limit_bytes=limit) if config.journal else None
        place = place_of(config, session=left.name, workspace=workspace.path, root=root, own=False)
        return cls(workspace, left.directory, recorder, journal, place, log)

    def give_up(self) -> None:
        """Leave nothing of them behind but the workspace."""
        if self.journal is not None:
            self.journal.close()
        if self.log is not None:
            self.log.close()
        if self.recorder is not None:
            with suppress(OSError):
                self.recorder.finish()
        with suppress(OSError):
            self.runtime.rmdir()


def _workspace(name: str, work_dir: str | os.PathLike[str] | None, config: Config) -> Workspace:
    """The directory named for the session, else the one for all, else one of its own."""
    if work_dir is not None:
        found = Workspace.at(work_dir)
    elif config.work_dir is not None:
        found = Workspace.made(config.work_dir)
    else:
        found = Workspace.make(config.workspace, name)
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
