"""What containers see of this machine: which directories are never given to them, and where the others are inside."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from kernelexec.config import (
    CREDENTIALS,
    HOME_INSIDE,
    WORKSPACE_INSIDE,
    Container,
    normalize_target,
    system_refusal,
    target_refusal,
)
from kernelexec.errors import InvalidConfig, InvalidWorkDir
from kernelexec.provisioning.runtime.owned_directory import NAME
from kernelexec.workspace.contexts import CONTEXT_INSIDE, Context, permissions
from kernelexec.workspace.rmtree import DIRECTORY

#: Where it is on this machine, where it is in the container, and whether it can only be read.
Bind = tuple[str, str, bool]

_PACKAGE = Path(__file__).resolve().parents[2]
#: What is below these can be read only.
_PROGRAMS = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/lib")


def binds(
    options: Container, *, workspace: Path, root: Path, records: Sequence[Path], contexts: Sequence[Context] = ()
) -> list[Bind]:
    """The mounts of a session's containers: its workspace first, then what is named.

    What has other rights than what it lies in is put over it once more: context paths, what is protected in them, and, to be
    read only, what could change this program, or the ``records`` of what ran.

    Raises:
        InvalidConfig: one is missing, is not given to containers, or has the place of another one or of a directory in memory.
    """
    inside = str(workspace) if options.layout == "host" else WORKSPACE_INSIDE
    found: list[Bind] = [(_checked(workspace, root, read_only=False, share_home=options.share_home), inside, False)]
    for mount in options.mounts:
        source = mount.source.expanduser().resolve()
        own = str(source) if options.layout == "host" else f"{CONTEXT_INSIDE}/{source.name}"
        given = _checked(source, root, read_only=mount.read_only, share_home=options.share_home)
        found.append((given, _target(mount.target or own), mount.read_only))
    for _, source, target in credentials(options):
        if source.exists():
            given = _checked(source.resolve(), root, read_only=True, share_home=options.share_home)
            found.append((given, target, True))
    for context in contexts:
        inside = str(context.path) if options.layout == "host" else f"{CONTEXT_INSIDE}/{context.name}"
        given = _checked(context.path, root, read_only=not context.writable, share_home=options.share_home)
        found.append((given, _target(inside), not context.writable))
    _check_apart(found)
    for given, _, read_only in found:
        if not read_only and any(Path(given).is_relative_to(record) for record in records):
            message = (
                f"{given} is not given to containers to be written: records of what ran are kept there. Mount it read only."
            )
            raise InvalidConfig(message)
    found += _laid_over(found, permissions(contexts) | dict.fromkeys([*own_code(), *records], False))
    for path in options.tmpfs:
        _check_memory(PurePosixPath(path), found, options.tmpfs)
    return found


def credentials(options: Container) -> list[tuple[str, Path, str]]:
    """Of each sort of credentials that containers are to have: its name, where it is here, and where it is there."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - never raises
    return [(name, home / CREDENTIALS[name], f"{HOME_INSIDE}/{CREDENTIALS[name]}") for name in options.credentials]


def refusal(
    source: Path,
    *,
    read_only: bool,
    sockets: Iterable[str] = (),
    roots: Iterable[Path] = (),
    home: Path | None = None,
    code: Iterable[Path] = (),
) -> str | None:
    """Why a path, all links resolved, is not given to containers; None where it is.

    ``sockets`` are the engine's, ``roots`` the private directories of executors, ``code`` is what this program runs from.
    """
    why = system_refusal(source)
    if why is not None:
        return why
    if any(_touches(source, Path(path)) for path in sockets):
        why = "who has the container engine has this machine"
    elif any(_touches(source, path) for path in roots):
        why = "the sockets and keys of kernels are there"
    elif home is not None and _holds(source, home):
        why = "it is a home directory, with its keys and with the files that its programs start from"
    elif not read_only and any(_holds(Path(path), source) for path in _PROGRAMS):
        why = "it is part of this machine's system, which is given to be read only"
    elif not read_only and any(_holds(path, source) for path in code):
        why = "this program itself runs from there, and it could be written"
    return why


def give(workspace: Path, user: tuple[int, int], *, own: bool) -> None:
    """See to it that a user can write in a workspace: a session's own directory is given to who its kernels run as.

    Raises:
        InvalidWorkDir: they could not write there.
    """
    fd = os.open(workspace, DIRECTORY)
    try:
        found = os.fstat(fd)
        uid, gid = user
        if own and uid != found.st_uid == os.geteuid() == 0:
            os.fchown(fd, uid, gid)
            return
    finally:
        os.close(fd)
    shift = 6 if found.st_uid == uid else 3 if found.st_gid == gid else 0
    if found.st_mode >> shift & 0o3 == 0o3 or "system.posix_acl_access" in os.listxattr(workspace):  # noqa: PLR2004 - wx
        return
    message = (
        f"{workspace} cannot be written by the kernels, which run as {uid}:{gid}; it belongs to {found.st_uid}:{found.st_gid}. "
        f"Give it to them (`chown {uid}:{gid}`), or name its owner by the option `container.user`."
    )
    raise InvalidWorkDir(message)


def _checked(source: Path, root: Path, *, read_only: bool, share_home: bool) -> str:
    try:
        found = source.stat()
    except OSError as exc:
        message = f"The mount {source} cannot be had: {exc.strerror}. Make it, or leave it out."
        raise InvalidConfig(message) from exc
    roots = (root, *(path for path in (source, *source.parents) if NAME.fullmatch(path.name)))
    home = None if share_home else Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - never raises
    why = refusal(source, read_only=read_only, sockets=_engine_sockets(), roots=roots, home=home, code=own_code())
    if why is None and not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
        why = "it is neither a directory nor a plain file"
    if why is not None:
        message = f"{source} is not given to containers: {why}. Name a directory that holds only what kernels need."
        raise InvalidConfig(message)
    return str(source)


def _target(target: str) -> str:
    if why := target_refusal(target):
        message = f"target={target!r} cannot be a mount's place: {why}."
        raise InvalidConfig(message)
    return normalize_target(target)


def _check_apart(found: Sequence[Bind]) -> None:
    for target, count in Counter(target for _, target, _ in found).items():
        if count > 1:
            sources = ", ".join(source for source, place, _ in found if place == target)
            message = f"{sources} would all be at {target} in the container: name another place for them by `target`."
            raise InvalidConfig(message)


def _check_memory(path: PurePosixPath, given: Sequence[Bind], tmpfs: Collection[str]) -> None:
    """Refuse a directory in memory that would hide what is mounted, or that an engine could not make where it is to be.

    Engines mount what is nearer to the root first. So one above a mount hides nothing of it, as ``/tmp`` does not; one below is
    seen, and is made in the mounted directory where that has none of the name.
    """
    for source, target, _ in given:
        if target == str(path):
            message = f"tmpfs: {path} would be in memory, and {source} is at that place: name another one for one of them."
            raise InvalidConfig(message)
    mounts = {PurePosixPath(target): (Path(source), read_only) for source, target, read_only in given}
    nearest = next((parent for parent in path.parents if parent in mounts or str(parent) in tmpfs), None)
    if nearest not in mounts:
        return
    mounted, read_only = mounts[nearest]
    place = mounted / path.relative_to(nearest)
    if not place.is_dir() and (read_only or os.path.lexists(place) or not mounted.is_dir()):
        message = f"tmpfs: {path} cannot be made in memory: {place} is no directory. Make it one, or name another place."
        raise InvalidConfig(message)


def _laid_over(found: Sequence[Bind], writable: Mapping[Path, bool]) -> list[Bind]:
    """What has other rights than the mounted directory that it lies in, to be mounted over it.

    So is each directory on the way to what can be read only, to be written as before: else it could be moved away, and another
    put in its place.
    """
    laid: dict[str, Bind] = {}
    ways: dict[str, Bind] = {}
    for source, target, read_only in found:
        known = {Path(source): not read_only}
        for path in sorted((path for path in writable if Path(source) in path.parents), key=lambda path: len(path.parts)):
            above = next(parent for parent in path.parents if parent in known)
            if known[above] == writable[path] or not path.exists():
                continue
            known[path] = writable[path]
            inside = path.relative_to(source)
            laid |= _bind(source, target, inside, read_only=not writable[path])
            for way in inside.parents[:-1] if known[above] else ():
                if above in (Path(source) / way).parents:
                    ways |= _bind(source, target, way, read_only=False)
    taken = {target for _, target, _ in found}
    return [bind for place, bind in sorted({**ways, **laid}.items()) if place not in taken]


def _bind(source: str, target: str, inside: Path, *, read_only: bool) -> dict[str, Bind]:
    place = str(PurePosixPath(target, inside))
    return {place: (str(Path(source, inside)), place, read_only)}


def own_code() -> list[Path]:
    """What this program runs from: this package, and the environment that it is installed in."""
    environment = [Path(sys.prefix).resolve()] if sys.prefix != sys.base_prefix else []
    return [*environment, *(path for path in (_PACKAGE,) if not any(map(path.is_relative_to, environment)))]


def _engine_sockets() -> list[str]:
    host = os.environ.get("DOCKER_HOST", "")
    named = [host.removeprefix("unix://")] if host.startswith("unix://") else []
    return [str(Path(path).resolve()) for path in ("/var/run/docker.sock", *named)]


def _touches(one: Path, other: Path) -> bool:
    return _holds(one, other) or _holds(other, one)


def _holds(outer: Path, inner: Path) -> bool:
    return inner.is_relative_to(outer)
