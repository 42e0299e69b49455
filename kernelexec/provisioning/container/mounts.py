"""The mounts of containers: sources on this machine, targets inside, and refused paths.

Further mounts are the launcher, and a Python for images without a suitable interpreter, as decided once in this process.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import anyio.to_thread

from kernelexec.config import CREDENTIALS, HOME_INSIDE, WORKSPACE_INSIDE, Container, in_container, system_refusal
from kernelexec.config.protected_paths import normalize_target, target_refusal
from kernelexec.docker.labels import RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, ImageMissing, InvalidConfig, InvalidWorkDir, KernelStartFailed
from kernelexec.provisioning.host.interpreters import own_code_paths
from kernelexec.provisioning.launch import LAUNCHER
from kernelexec.provisioning.runtime.owned_directory import ROOT_NAME
from kernelexec.workspace.contexts import CONTEXT_INSIDE, Context, permissions
from kernelexec.workspace.safe_files import DIRECTORY

if TYPE_CHECKING:
    from kernelexec.docker.images.image_python import PythonVolume


#: Path on this machine, path in the container, and whether the mount is read-only.
Bind = tuple[str, str, bool]

#: Directories of system programs: a mount of these must be read-only.
_PROGRAMS = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/lib")
#: The mounts of this process.
_MOUNTINFO = Path("/proc/self/mountinfo")
#: The column of mountinfo that has the path of a mount.
_TARGET_COLUMN = 4
#: The interpreter of the mounted Python.
_MOUNTED_PYTHON = f"{RUNTIME_INSIDE}/bin/python3"
#: The image that provides the mounted Python and its packages.
RUNTIME_IMAGE = "kernelexec/minimal"
_chosen: dict[tuple[object, ...], PythonVolume] = {}


def build_mounts(
    options: Container, *, workspace: Path, root: Path, records: Sequence[Path], contexts: Sequence[Context] = ()
) -> list[Bind]:
    """Return the mounts of a session's containers: the workspace first, then the configured mounts.

    A path with other rights than the surrounding mount gets another mount: context paths and protected parts of these, and,
    read-only, the files of this program and the ``records`` of executed code.

    Raises:
        InvalidConfig: a source is missing or refused, or two mounts or a tmpfs have the same target.
    """
    inside = str(workspace) if options.layout == "host" else WORKSPACE_INSIDE
    mounts: list[Bind] = []

    def add(source: Path, target: str, *, read_only: bool, is_own: bool = False) -> None:
        source_path = _check_source(source, root, read_only=read_only, share_home=options.share_home)
        mounts.append((source_path, target if is_own else _check_target(target), read_only))

    add(workspace, inside, read_only=False, is_own=True)
    for mount in options.mounts:
        source = mount.source.expanduser().resolve()  # before the check: the engine would follow a link to a refused path
        default_target = str(source) if options.layout == "host" else f"{CONTEXT_INSIDE}/{source.name}"
        add(source, mount.target or default_target, read_only=mount.read_only)
    for _, source, target in list_credentials(options):
        if source.exists():
            add(source.resolve(), target, read_only=True, is_own=True)
    for context in contexts:
        inside = str(context.path) if options.layout == "host" else f"{CONTEXT_INSIDE}/{context.name}"
        add(context.path, inside, read_only=not context.writable)
    _check_distinct(mounts)
    for source_path, _, read_only in mounts:
        if not read_only and any(Path(source_path).is_relative_to(record) for record in records):
            message = f"{source_path} must be mounted read-only: it holds the records of executed code."
            raise InvalidConfig(message)
    mounts += _overlay_mounts(mounts, permissions(contexts) | dict.fromkeys([*own_code_paths(), *records], False))
    for path in options.tmpfs.keys() - {"/tmp", "/dev/shm"}:  # noqa: S108 - each container has these
        _check_tmpfs(PurePosixPath(path), mounts, options.tmpfs)
    return mounts


def list_credentials(options: Container) -> list[tuple[str, Path, str]]:
    """Return name, path on this machine and path in containers for each kind of shared credentials."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - never raises
    return [(name, home / CREDENTIALS[name], f"{HOME_INSIDE}/{CREDENTIALS[name]}") for name in options.credentials]


def explain_refusal(
    source: Path,
    *,
    read_only: bool,
    sockets: Iterable[str] = (),
    roots: Iterable[Path] = (),
    home: Path | None = None,
    code: Iterable[Path] = (),
) -> str | None:
    """Return why a path, with all links resolved, is refused to containers; None if allowed.

    ``sockets`` are the engine's, ``roots`` the private directories of executors, ``code`` the directories of this program.
    """
    reason = system_refusal(source)
    if reason is not None:
        return reason
    if any(_overlaps(source, Path(path)) for path in sockets):
        reason = "access to the container engine is access to this machine"
    elif any(_overlaps(source, path) for path in roots):
        reason = "it holds the sockets and keys of kernels"
    elif home is not None and home.is_relative_to(source):
        reason = "it is a home directory, with keys and with the start-up files of programs"
    elif not read_only and any(source.is_relative_to(path) for path in _PROGRAMS):
        reason = "it is part of this machine's system and must be mounted read-only"
    elif not read_only and any(source.is_relative_to(path) for path in code):
        reason = "this program runs from there, so it must be mounted read-only"
    return reason


def give_workspace(workspace: Path, user: tuple[int, int], *, is_own_workspace: bool) -> None:
    """Give a session's own workspace to the user of the kernels; raise ``InvalidWorkDir`` if the user cannot write there."""
    fd = os.open(workspace, DIRECTORY)
    try:
        status = os.fstat(fd)
        uid, gid = user
        if is_own_workspace and uid != status.st_uid == os.geteuid() == 0:
            os.fchown(fd, uid, gid)
            return
    finally:
        os.close(fd)
    # Owner, group or others: Linux applies the first class that fits, even if a later class has more rights.
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    if status.st_mode >> shift & 0o3 == 0o3 or "system.posix_acl_access" in os.listxattr(workspace):  # noqa: PLR2004 - wx
        return
    message = (
        f"{workspace} cannot be written by the kernels, which run as {uid}:{gid}; it belongs to"
        f" {status.st_uid}:{status.st_gid}. Give it to them (`chown {uid}:{gid}`), or"
        " name its owner by the option `container.user`."
    )
    raise InvalidWorkDir(message)


def _check_source(source: Path, root: Path, *, read_only: bool, share_home: bool) -> str:
    try:
        status = source.stat()
    except OSError as exc:
        message = f"The mount {source} cannot be read: {exc.strerror}. Create it, or leave it out."
        raise InvalidConfig(message) from exc
    # Private directories of other executors are known by name: they may lie in any directory, at any depth.
    roots = (root, *(path for path in (source, *source.parents) if ROOT_NAME.fullmatch(path.name)))
    home = None if share_home else Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - never raises
    reason = explain_refusal(
        source, read_only=read_only, sockets=_engine_sockets(), roots=roots, home=home, code=own_code_paths()
    )
    if reason is None and not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        reason = "it is neither a directory nor a regular file"
    if reason is not None:
        message = f"{source} is not given to containers: {reason}. Name a directory that holds only what kernels need."
        raise InvalidConfig(message)
    return str(source)


def _check_target(target: str) -> str:
    if reason := target_refusal(target):
        message = f"target={target!r} cannot be a mount's target: {reason}."
        raise InvalidConfig(message)
    return normalize_target(target)


def _check_distinct(mounts: Sequence[Bind]) -> None:
    for target, count in Counter(target for _, target, _ in mounts).items():
        if count > 1:
            sources = ", ".join(source for source, other_target, _ in mounts if other_target == target)
            message = f"{sources} have the same target {target} in the container: choose another one by `target`."
            raise InvalidConfig(message)


def _check_tmpfs(path: PurePosixPath, mounts: Sequence[Bind], tmpfs: Collection[str]) -> None:
    """Refuse a tmpfs on the target of a mount, or in a place where an engine cannot create the directory.

    Engines mount shorter paths first. So a tmpfs on a parent directory, such as ``/tmp``, does not hide a mount. A tmpfs inside
    a mount needs a directory in the mounted source, created by the engine.
    """
    for source, target, _ in mounts:
        if target == str(path):
            message = f"tmpfs: {path} is also the target of the mount {source}: choose another path for one of them."
            raise InvalidConfig(message)
    by_target = {PurePosixPath(target): (Path(source), read_only) for source, target, read_only in mounts}
    nearest = next((parent for parent in path.parents if parent in by_target or str(parent) in tmpfs), None)
    if nearest not in by_target:
        return
    mounted, read_only = by_target[nearest]
    host_path = mounted / path.relative_to(nearest)
    if not host_path.is_dir() and (read_only or os.path.lexists(host_path) or not mounted.is_dir()):
        message = f"tmpfs: {path} cannot be created: {host_path} is no directory. Create it, or choose another path."
        raise InvalidConfig(message)


def _overlay_mounts(mounts: Sequence[Bind], writable: Mapping[Path, bool]) -> list[Bind]:
    """Return additional mounts for paths with other rights than the surrounding mount.

    Each writable directory above a read-only path becomes a mount too: else a kernel could move and replace the directory.
    """
    overlays: dict[str, Bind] = {}
    parent_binds: dict[str, Bind] = {}
    for source, target, read_only in mounts:
        decided = {Path(source): not read_only}
        for path in sorted((path for path in writable if Path(source) in path.parents), key=lambda path: len(path.parts)):
            above = next(parent for parent in path.parents if parent in decided)
            if decided[above] == writable[path] or not path.exists():
                continue
            decided[path] = writable[path]
            inside = path.relative_to(source)
            overlays |= _bind(source, target, inside, read_only=not writable[path])
            for parent_path in inside.parents[:-1] if decided[above] else ():
                # rename(2) of a mount point fails (EBUSY), of a directory above one does not.
                if above in (Path(source) / parent_path).parents:
                    parent_binds |= _bind(source, target, parent_path, read_only=False)
    used_targets = {target for _, target, _ in mounts}
    return [bind for bind_target, bind in sorted({**parent_binds, **overlays}.items()) if bind_target not in used_targets]


def _bind(source: str, target: str, inside: Path, *, read_only: bool) -> dict[str, Bind]:
    bind_target = str(PurePosixPath(target, inside))
    return {bind_target: (str(Path(source, inside)), bind_target, read_only)}


def _engine_sockets() -> list[str]:
    host = os.environ.get("DOCKER_HOST", "")
    named = [host.removeprefix("unix://")] if host.startswith("unix://") else []
    return [str(Path(path).resolve()) for path in ("/var/run/docker.sock", *named)]


def _overlaps(path: Path, other: Path) -> bool:
    return path.is_relative_to(other) or other.is_relative_to(path)


def find_launcher(root: Path) -> str:
    """Return a launcher directory for the engine to mount: the package's own, or a copy in the executor's ``root``.

    The engine mounts paths of the engine's machine. If this process is in a container with the engine's socket mounted, the
    package's path does not exist there. The executor's directory has the same path on both sides, and exists as long as the
    kernels, which the next server may adopt.
    """
    if not _is_engine_outside():
        return str(LAUNCHER)
    copy, unfinished = root / "launcher", root / "launcher.copy"
    if not copy.exists():
        shutil.rmtree(unfinished, ignore_errors=True)  # the disk was full
        shutil.copytree(LAUNCHER, unfinished, ignore=shutil.ignore_patterns("__pycache__"))
        unfinished.rename(copy)  # a copy of that name is complete
    return str(copy)


@cache
def _is_engine_outside() -> bool:
    """Return whether this process is in a container with the engine's socket as a mount."""
    from kernelexec.docker.client import host, socket_at  # noqa: PLC0415 - local kernels need no docker package

    path = socket_at(host())
    return path is not None and in_container() and _is_mounted(path)


def _is_mounted(path: str) -> bool:
    """Return whether a path is a mount point."""
    targets = {line.split(" ")[_TARGET_COLUMN] for line in _MOUNTINFO.read_text(encoding="utf-8").splitlines()}
    return not targets.isdisjoint((path, str(Path(path).resolve())))


def chosen_python(options: Container) -> PythonVolume | None:
    """Return the mounted Python of kernels with these options; None for the image's own Python."""
    return _chosen.get(_options_key(options))


async def choose_python(options: Container, failure: KernelStartFailed | None) -> None:
    """Find a mounted Python for the next kernel with these options, if ``failure`` came from the image's own Python.

    Raises:
        KernelStartFailed: a mounted Python is needed but unavailable, or the image lacks an interpreter named by option.
    """
    if failure is None or chosen_python(options) is not None:
        return
    from kernelexec.docker.images.image_python import provide_python  # noqa: PLC0415 - docker, as above

    try:
        volume = await anyio.to_thread.run_sync(provide_python, options, RUNTIME_IMAGE)
    except (EngineFailed, ImageMissing) as exc:
        message = (
            f"{failure} No Python can be mounted from the image {RUNTIME_IMAGE} in place of the image's own: {exc} "
            f"`kernelexec image check {options.image[0]}` says what it lacks, and how to add it."
        )
        raise KernelStartFailed(message) from exc
    if volume is not None:
        _chosen[_options_key(options)] = volume


def python_of(options: Container) -> tuple[str, tuple[Bind, ...]]:
    """Return the interpreter of kernels with these options, and the necessary mounts."""
    mounted = chosen_python(options)
    return (_MOUNTED_PYTHON, ((mounted.volume, RUNTIME_INSIDE, True),)) if mounted else (options.python, ())


def describe_python(options: Container) -> tuple[str, ...]:
    """Return the note on a mounted Python for a kernel's first result; empty without."""
    mounted = chosen_python(options)
    if mounted is None:
        return ()
    image, python = " or ".join(options.image), f"a Python that is mounted there ({mounted.version})"
    return (f"The image {image} has {mounted.missing}: the kernel runs on {python}; commands see the image as it is.",)


def _options_key(options: Container) -> tuple[object, ...]:
    return options.image, options.python
