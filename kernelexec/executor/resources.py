"""The resources of a session before the start: workspace, private directory, notebook, journal and log."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernelexec.config import Config, system_refusal
from kernelexec.errors import InvalidWorkDir
from kernelexec.executor.pool import WarmSlot
from kernelexec.provisioning import Backend, ForkServers, RuntimeDirectory, backend_for
from kernelexec.provisioning.runtime.discovery import SESSION_FILES, OrphanedSessionFile, find_ended_languages
from kernelexec.session.features.saved_state.branches import BranchStart
from kernelexec.workspace import FileChanges, FileWatcher, Workspace
from kernelexec.workspace.contexts import contexts
from kernelexec.workspace.directory import check_allowed_path, numbered_paths
from kernelexec.workspace.rmtree import remove_tree

if TYPE_CHECKING:
    from kernelexec.records.journal import Journal
    from kernelexec.records.log import ContainerLog
    from kernelexec.records.notebook.recorder import Recorder
    from kernelexec.rules.secrets import SecretStore
    from kernelexec.session.cells.takeover import OrphanedSession

logger = logging.getLogger("kernelexec")
#: The size of a session's journal, in bytes. Above it the oldest quarter is deleted.
_JOURNAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The start options of a session without a copied kernel."""

    name: str
    work_dir: str | os.PathLike[str] | None = None
    """The workspace; None stands for the configured directory, or a directory of the session's own."""
    within: Path | None = None
    """The surrounding workspace of a branch in which the cells of another session run again."""
    is_replay: bool = False
    """Whether recorded cells run again, which requires a notebook of the session's own."""


@dataclass(frozen=True, slots=True)
class SessionResources:
    """The resources of a session. The creator must call ``discard`` if no session takes them.

    A failed creation leaves nothing open.
    """

    workspace: Workspace
    runtime: Path
    recorder: Recorder | None
    journal: Journal | None
    backend: Backend
    changes: FileChanges
    log: ContainerLog | None = None
    notes: tuple[str, ...] = ()
    """Notes for the first result."""

    @classmethod
    def create(
        cls,
        new: SessionStart,
        root: Path,
        config: Config,
        forks: ForkServers | None = None,
        slot: WarmSlot | None = None,
        secrets: SecretStore | None = None,
        watcher: FileWatcher | None = None,
    ) -> SessionResources:
        """Create the resources of a new session. For a thread: the former owner may still be closing the journal.

        The ``slot`` of a warm kernel brings the private directory, and the workspace if the kernel cannot change it.

        Raises:
            InvalidWorkDir: the workspace is not within the allowed paths, is missing, cannot be created, must not be mounted
                in a container, or is not writable for kernels.
            InvalidConfig: a context path is not available, or the log cannot be created.
        """
        workspace = slot.workspace if slot is not None else None
        return cls._create(
            new.name,
            _open_workspace(new.name, new.work_dir, config) if workspace is None else workspace,
            root,
            config,
            within=new.within,
            is_private=new.work_dir is None and config.work_dir is None,
            make_directory=_directory_for(root, new.name) if slot is None else partial(Path, slot.directory),
            is_replay=new.is_replay,
            forks=forks,
            secrets=secrets,
            watcher=watcher,
        )

    @classmethod
    def branch(
        cls,
        name: str,
        start: BranchStart,
        root: Path,
        config: Config,
        forks: ForkServers | None = None,
        secrets: SecretStore | None = None,
        watcher: FileWatcher | None = None,
    ) -> SessionResources:
        """Create the resources of a branch. For a thread. Errors are those of ``create``."""
        workspace = Workspace.at(start.workspace)
        return cls._create(
            name,
            workspace,
            root,
            config,
            within=start.within,
            is_private=workspace.path != start.parent.family.context.workspace.path,
            make_directory=_directory_for(root, name),
            notebook=start.notebook,
            forks=forks,
            secrets=secrets,
            watcher=watcher,
        )

    @classmethod
    def adopt(
        cls,
        orphan: OrphanedSessionFile,
        root: Path,
        config: Config,
        secrets: SecretStore | None = None,
        watcher: FileWatcher | None = None,
    ) -> SessionResources:
        """Adopt the resources of a dead owner's session, in a root now owned by this process. For a thread.

        The recorder continues the session's notebook if possible, or else starts a new notebook in the same directory.

        Raises:
            InvalidWorkDir: the workspace is missing, not allowed to this executor, or not writable for kernels.
            InvalidConfig: a context path is not available, or the log cannot be created.
        """
        workspace = Workspace.at(orphan.workspace)
        if not workspace.path.is_relative_to(config.absolute_workspace.resolve()):
            check_allowed_path(workspace.path, config.allowed_paths)
        adopt = partial(cls._create, orphan.name, workspace, root, config, is_private=False, watcher=watcher)
        return adopt(make_directory=partial(_clear_owner_files, orphan), notebook=orphan.notebook, secrets=secrets)

    @classmethod
    def _create(
        cls,
        name: str,
        workspace: Workspace,
        root: Path,
        config: Config,
        *,
        is_private: bool,
        make_directory: Callable[[], Path],
        within: Path | None = None,
        notebook: Path | None = None,
        is_replay: bool = False,
        forks: ForkServers | None = None,
        secrets: SecretStore | None = None,
        watcher: FileWatcher | None = None,
    ) -> SessionResources:
        log = journal = recorder = None
        notes: tuple[str, ...] = ()
        with ExitStack() as cleanup:
            if config.log_dir is not None:
                from kernelexec.records.log import ContainerLog  # noqa: PLC0415 - for a log only

                log = ContainerLog(config.log_dir, name, workspace.path)
            make_backend = partial(backend_for, config, session=name, workspace=workspace.path, root=root)
            backend = make_backend(within=within, is_own_workspace=is_private, fork_servers=forks, secrets=secrets)
            workspace = Workspace(workspace.path, tuple(context.path for context in contexts(config) if not context.single))
            directory = make_directory()
            cleanup.callback(_remove_empty, directory)  # the directory of a pool's slot or of a dead owner is not empty
            if config.notebook:
                from kernelexec.records.notebook.recorder import open_recorder  # noqa: PLC0415 - for a notebook only

                try:
                    recorder = open_recorder(name, workspace.path, notebook, is_replay=is_replay)
                except OSError as exc:
                    notes = (f"No notebook is recorded: {workspace.path} cannot be written ({exc.strerror or exc}).",)
                    logger.error("kernelexec.notebook_not_created", extra={"session": name, "reason": str(exc)})  # noqa: TRY400
                cleanup.callback(_close_recorder, recorder)
            if config.journal:
                from kernelexec.records.journal import Journal, journal_path  # noqa: PLC0415 - for a journal only

                journal = Journal(journal_path(config.workspace, name), limit_bytes=_JOURNAL_BYTES)
            ignored = frozenset({recorder.path.name} if recorder else ())  # we write it during cells
            changes = FileChanges(workspace.path, ignore=ignored, watcher=watcher)
            cleanup.pop_all()
        return cls(workspace, directory, recorder, journal, backend, changes, log, notes)

    def discard(self) -> None:
        """Close and remove everything except the workspace."""
        if self.journal is not None:
            self.journal.close()
        self.changes.close()
        _close_recorder(self.recorder)
        _remove_empty(self.runtime)


def _clear_owner_files(orphan: OrphanedSessionFile) -> Path:
    """Remove the files that only a session's dead owner used, and return the session's private directory."""
    kernel = orphan.directory / str(orphan.handover.epoch)
    keep = {kernel.name, RuntimeDirectory(kernel).path.name, *SESSION_FILES}
    for path in orphan.directory.iterdir():
        if path.name not in keep:
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return orphan.directory


def _close_recorder(recorder: Recorder | None) -> None:
    """Finish the notebook, or remove a notebook without cells."""
    with suppress(OSError):
        if recorder is not None:
            recorder.finish()


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _open_workspace(name: str, work_dir: str | os.PathLike[str] | None, config: Config) -> Workspace:
    """Return the session's workspace: ``work_dir``, else the configured directory for all, else the session's own."""
    if work_dir is not None:
        check_allowed_path(work_dir, config.allowed_paths)
        workspace = Workspace.at(work_dir)
    elif config.work_dir is not None:
        check_allowed_path(config.work_dir, config.allowed_paths)  # before it is made
        workspace = Workspace.create(config.work_dir)
    else:
        workspace = Workspace.create_for_session(config.workspace, name)
    if work_dir is not None or config.work_dir is not None:
        check_allowed_path(workspace.path, config.allowed_paths)  # links may have changed meanwhile
    if config.isolation == "container" and (reason := system_refusal(workspace.path)):
        message = f"{workspace.path} must not be mounted into a container for writing: {reason}. Name another work_dir."
        raise InvalidWorkDir(message)
    return workspace


def _directory_for(root: Path, name: str) -> Callable[[], Path]:
    """Return a function to create the private directory of the session."""
    # Few characters of the name: the paths of the unix sockets below have at most 107 bytes.
    return partial(_new_directory, root / name[:8].replace(".", "-"))


def _new_directory(path: Path) -> Path:
    """Create a directory, with a number if the name is taken: shortened names may be equal."""
    for candidate in numbered_paths(path):
        with suppress(FileExistsError):
            candidate.mkdir(mode=0o700)
            return candidate
    raise AssertionError


def config_of_orphan(orphan: OrphanedSessionFile, config: Config) -> Config:
    """Return the settings for an adopted session: paths stay as known to the container and the state."""
    created = orphan.handover.provisioner.get("made")
    if created is None:
        return config
    container = config.container.model_copy(update={"layout": created["options"].get("layout", config.container.layout)})
    return config.model_copy(update={"container": container})


def adopted_resources(
    orphan: OrphanedSessionFile,
    root: Path,
    config: Config,
    secrets: SecretStore | None = None,
    watcher: FileWatcher | None = None,
) -> tuple[SessionResources, OrphanedSession]:
    """Return the resources of a dead owner's session, and the running cell; raise ``InvalidWorkDir`` without workspace."""
    from kernelexec.records.journal import journal_path, running_cell  # noqa: PLC0415 - few sessions are adopted
    from kernelexec.session.cells.takeover import OrphanedSession, read_results  # noqa: PLC0415 - as above

    journal = orphan.journal or journal_path(config.workspace, orphan.name)
    unfinished_cell = running_cell(journal) if config.journal else None
    ended_languages = find_ended_languages(orphan.directory)
    results = read_results(orphan.directory)
    return SessionResources.adopt(orphan, root, config, secrets, watcher), OrphanedSession(
        orphan.handover, unfinished_cell, ended_languages, results
    )
