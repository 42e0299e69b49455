"""The resources that a session gets before it starts: its workspace, private directory, notebook, journal and log."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path

from kernelexec.config import Config, system_refusal
from kernelexec.errors import InvalidWorkDir
from kernelexec.pool import WarmSlot
from kernelexec.provisioning import Backend, ForkServers, RuntimeDirectory, backend_for
from kernelexec.provisioning.runtime.discovery import SESSION_FILES, OrphanedSessionFile
from kernelexec.records.journal import Journal, journal_path
from kernelexec.records.log import ContainerLog
from kernelexec.records.notebook.recorder import Recorder, make_empty
from kernelexec.secrets import SecretStore
from kernelexec.workspace import FileChanges, FileWatcher, Workspace
from kernelexec.workspace.contexts import contexts
from kernelexec.workspace.directory import check_allowed_path
from kernelexec.workspace.rmtree import remove_tree

#: Errors that end when space is freed.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: The notebooks of earlier sessions of one name that stay in a workspace, and how old the one is that a new one replaces.
_NOTEBOOKS_MAX, _NOTEBOOK_SECONDS = 9, 3600.0

logger = logging.getLogger("kernelexec")


@dataclass(frozen=True, slots=True)
class SessionResources:
    """The resources of one session. A creator that finds no session for them calls ``discard``.

    If creation fails, nothing stays open.
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
        name: str,
        work_dir: str | os.PathLike[str] | None,
        root: Path,
        config: Config,
        forks: ForkServers | None = None,
        slot: WarmSlot | None = None,
        secrets: SecretStore | None = None,
        watcher: FileWatcher | None = None,
    ) -> SessionResources:
        """Create the resources of a new session. For a thread: the journal's former owner may still be closing it.

        The ``slot`` of a warm kernel brings its own private directory, and in a container its workspace.

        Raises:
            InvalidWorkDir: the workspace is not within the allowed paths, is missing, cannot be created, must not be mounted
                in a container, or is not writable for kernels.
            InvalidConfig: a context path is not available, or the log cannot be created.
        """
        workspace = (
            slot.workspace if slot is not None and slot.workspace is not None else _open_workspace(name, work_dir, config)
        )
        is_private = work_dir is None and config.work_dir is None
        runtime = partial(_new_directory, root / name[:8].replace(".", "-")) if slot is None else partial(Path, slot.directory)
        return cls._create(
            name,
            workspace,
            root,
            config,
            is_private=is_private,
            make_directory=runtime,
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
        """Adopt the resources of a dead owner's session, in a root that this process now owns. For a thread.

        The recorder continues the session's notebook if it can; otherwise it starts a new one next to it.

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
        notebook: Path | None = None,
        forks: ForkServers | None = None,
        secrets: SecretStore | None = None,
        watcher: FileWatcher | None = None,
    ) -> SessionResources:
        log = journal = recorder = None
        notes: tuple[str, ...] = ()
        with ExitStack() as cleanup:
            if config.log_dir is not None:
                log = ContainerLog(config.log_dir, name, workspace.path)
            make_backend = partial(backend_for, config, session=name, workspace=workspace.path, root=root)
            backend = make_backend(is_own_workspace=is_private, fork_servers=forks, secrets=secrets)
            workspace = Workspace(workspace.path, tuple(context.path for context in contexts(config) if not context.single))
            directory = make_directory()
            cleanup.callback(_remove_empty, directory)
            if config.notebook:
                try:
                    recorder = _open_recorder(name, workspace, notebook)
                except OSError as exc:
                    notes = (f"No notebook is recorded: {workspace.path} cannot be written ({exc.strerror or exc}).",)
                    logger.error("kernelexec.notebook_not_created", extra={"session": name, "reason": str(exc)})  # noqa: TRY400
                cleanup.callback(_close_recorder, recorder)
            if config.journal:
                journal = Journal(journal_path(config.workspace, name), limit_bytes=config.capacity.journal_bytes)
            ignored = frozenset({recorder.path.name} if recorder else ())
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
    """Return a session's private directory after removing the files that only its dead owner used."""
    kernel = orphan.directory / str(orphan.handover.epoch)
    keep = {kernel.name, RuntimeDirectory(kernel).path.name, *SESSION_FILES}
    for path in orphan.directory.iterdir():
        if path.name not in keep:
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return orphan.directory


def _close_recorder(recorder: Recorder | None) -> None:
    """Finish the notebook; one without any cell is removed."""
    with suppress(OSError):
        if recorder is not None:
            recorder.finish()


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _open_workspace(name: str, work_dir: str | os.PathLike[str] | None, config: Config) -> Workspace:
    """Return the session's workspace: ``work_dir``, else the configured directory for all, else one of its own."""
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


def _open_recorder(name: str, workspace: Workspace, existing: Path | None = None) -> Recorder:
    """Return the recorder of a notebook that no other session uses; on a full disk its name is reserved later.

    An ``existing`` notebook of this session in the workspace is continued.

    Raises:
        OSError: no file can be created in the workspace.
    """
    if existing is not None and existing.parent == workspace.path and (recorder := Recorder.of(existing)) is not None:
        return recorder
    list_paths = partial(_numbered_paths, workspace.path / f"{name}.ipynb")
    if all(path.exists() for path in islice(list_paths(), _NOTEBOOKS_MAX)):
        _remove_oldest_notebook(islice(list_paths(), _NOTEBOOKS_MAX))
    for path in list_paths():
        try:
            make_empty(path)
        except FileExistsError:
            continue
        except OSError as exc:
            if exc.errno in _FULL:
                return Recorder(path, is_reserved=False)
            raise
        return Recorder(path)
    raise AssertionError


def _remove_oldest_notebook(paths: Iterable[Path]) -> None:
    """Remove the oldest of several notebooks if a recorder wrote it and nothing changed it lately."""
    with suppress(OSError):
        changed, path = min((path.stat().st_mtime, path) for path in paths)
        if time.time() - changed > _NOTEBOOK_SECONDS and Recorder.of(path) is not None:
            path.unlink()


def _new_directory(path: Path) -> Path:
    """Create a directory of that name, with a number if the name is taken: shortened names may be equal."""
    for candidate in _numbered_paths(path):
        with suppress(FileExistsError):
            candidate.mkdir(mode=0o700)
            return candidate
    raise AssertionError


def _numbered_paths(path: Path) -> Iterator[Path]:
    yield path
    yield from (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
