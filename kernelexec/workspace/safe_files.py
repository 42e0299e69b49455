"""Files and directories that a kernel can write in: opened without following links, read within a bound, replaced, removed.

Functions raise ``OSError`` for a file that is missing or not regular, and for a link in its place or on the way.

Linux resolves a path beneath a directory in one call (``openat2(2)``, 5.6 or newer). Elsewhere each part is opened from the one
before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import stat
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from kernelexec.workspace.directory import give_to_owner

_BUFFER_BYTES = 256 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Yield an open file descriptor, and close it."""
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Open a regular file for reading; the caller closes it."""
    fd = os.open(path, _READ, dir_fd=dir_fd)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(f"{path} is no plain file")


def read_regular(path: str | Path, limit_bytes: int, *, dir_fd: int | None = None, tail: bool = False) -> bytes:
    """Return the first bytes of a regular file, or with ``tail`` the last ones."""
    with os.fdopen(open_regular(path, dir_fd=dir_fd), "rb") as file:
        if tail:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit_bytes))
        return file.read(limit_bytes)


def replace_file(
    path: str | Path,
    content: bytes | Iterable[bytes],
    *,
    mode: int | None = None,
    dir_fd: int | None = None,
    temporary: str = "",
) -> None:
    """Replace a file as a whole: readers see the old or the new content. A link in its place is replaced, not followed.

    The file belongs to the owner of its directory; its ``mode`` is by default 0o644 less the umask. Until it is complete it
    is called ``temporary``, and a leftover of that name is removed; without a name, each call chooses one.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    path = Path(path)
    unfinished = path.with_name(temporary or f".{path.name}.{secrets.token_hex(8)}.tmp")
    if temporary:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=dir_fd)
    create_file(unfinished, content, mode=mode, dir_fd=dir_fd)
    try:
        os.rename(unfinished, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished, dir_fd=dir_fd)
        raise


def create_file(path: Path, content: bytes | Iterable[bytes], *, mode: int | None = None, dir_fd: int | None = None) -> None:
    """Create a file that belongs to the owner of its directory; a file that cannot be filled is removed again.

    Its ``mode`` is by default 0o644 less the umask.

    Raises:
        FileExistsError: there is a file or a link of that name.
        OSError: the file cannot be written.
    """
    fd = os.open(path, _CREATE, 0o644 if mode is None else mode, dir_fd=dir_fd)
    try:
        with os.fdopen(fd, "wb", buffering=_BUFFER_BYTES) as file:
            give_to_owner(fd, os.stat(path.parent, dir_fd=dir_fd))
            if mode is not None:
                os.fchmod(fd, mode)
            file.writelines([content] if isinstance(content, bytes) else content)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=dir_fd)
        raise


def replace_beneath(top: Path, relative: Path, content: bytes) -> None:
    """Replace a file below ``top`` as a whole; missing directories on the way are created."""
    with ExitStack() as opened:
        first = os.open(top, DIRECTORY)
        replace_file(relative.name, content, dir_fd=open_directory_chain(first, relative.parent, opened, owner=os.fstat(first)))


def copy_between(source: Path, target: Path, relative: Path, names: Iterable[str]) -> None:
    """Copy regular files of a directory in one workspace into the same directory of another; no link is followed in either.

    Files that are missing, not regular, or there already are left out.
    """
    with ExitStack() as opened:
        source_fd = open_directory_chain(os.open(source, _TOP), relative, opened)
        first = os.open(target, _TOP)
        target_fd = open_directory_chain(first, relative, opened, owner=os.fstat(first))
        for name in names:
            with suppress(OSError), os.fdopen(open_regular(name, dir_fd=source_fd), "rb") as file:
                fd = os.open(name, _CREATE, 0o644, dir_fd=target_fd)
                with os.fdopen(fd, "wb") as copy:
                    give_to_owner(fd, os.fstat(target_fd))
                    shutil.copyfileobj(file, copy)


def has_content(path: Path, content: bytes) -> bool:
    """Return whether a regular file has exactly that content."""
    try:
        return read_regular(path, len(content) + 1) == content
    except OSError:
        return False


#: Flags to open a directory, and not the target of a link in its place.
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: `O_PATH` where the system has it. It is asked for here, because this module is below the one that knows systems.
NAMED = getattr(os, "O_PATH", os.O_RDONLY)
_PASSES = 5


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, as far as that is possible."""
    with suppress(OSError):
        with closing_fd(os.open(path, DIRECTORY)) as fd:
            clear(fd)
        path.rmdir()


def remove_within(top: Path, relative: Path) -> None:
    """Remove a directory below ``top``, which a kernel can write in; no link is followed on the way either."""
    with suppress(OSError), ExitStack() as opened:
        above = open_directory_chain(os.open(top, DIRECTORY), relative.parent, opened)
        clear(open_directory_chain(os.open(relative.name, DIRECTORY, dir_fd=above), Path(), opened))
        os.rmdir(relative.name, dir_fd=above)


def open_directory_chain(top: int, relative: Path, opened: ExitStack, *, owner: os.stat_result | None = None) -> int:
    """Open the directory below an open one, part by part; ``opened`` closes all of them, ``top`` too.

    With an ``owner``, missing directories on the way are created and given to it.
    """
    opened.callback(os.close, top)
    for part in relative.parts:
        is_new = False
        if owner is not None:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=top)
                is_new = True
        top = os.open(part, DIRECTORY, dir_fd=top)
        opened.callback(os.close, top)
        if owner is not None and is_new:
            give_to_owner(top, owner)
    return top


def clear(top: int, *, keep: str = "", stop: threading.Event | None = None) -> bool:
    """Remove the content of an open directory but ``keep``; return whether nothing else is left. Ends soon after ``stop``.

    Deep directories are moved up before they are opened: the depth, which a kernel chooses, costs neither
        recursion nor descriptors.
    """
    for _ in range(_PASSES):
        names = deque(name for name in names_in(top) if name != keep)
        if not names:
            return True
        while names:
            if stop is not None and stop.is_set():
                return False
            with suppress(OSError):
                names.extend(_remove(names.popleft(), top))
    return False


def names_in(directory: int) -> list[str]:
    """Return the names in an open directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _remove(name: str, top: int) -> list[str]:
    """Remove a file, or a directory after moving its directories up; return the names of those."""
    if _unlink(name, top):
        return []
    moved = []
    with closing_fd(_open_ours(name, top)) as fd:
        for inner in names_in(fd):
            if not _unlink(inner, fd):
                os.close(_open_ours(inner, fd))
                moved.append(secrets.token_hex(8))
                os.rename(inner, moved[-1], src_dir_fd=fd, dst_dir_fd=top)
    os.rmdir(name, dir_fd=top)
    return moved


def _unlink(name: str, parent: int) -> bool:
    """Remove a name that is not a directory; return whether it was removed."""
    try:
        os.unlink(name, dir_fd=parent)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _make_ours(fd: int) -> None:
    """Give the owner of an open file full rights to it, not to a file of the same name."""
    if NAMED == os.O_RDONLY:
        os.fchmod(fd, stat.S_IRWXU)
    else:
        Path(f"/proc/self/fd/{fd}").chmod(stat.S_IRWXU)


def _open_ours(name: str, parent: int) -> int:
    """Open a directory after giving its owner full rights to it."""
    with closing_fd(os.open(name, NAMED | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)) as fd:
        if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            _make_ours(fd)
        return os.open(name, DIRECTORY, dir_fd=parent)


#: The call has one number on every architecture that Python runs on; the C library has no function for it.
_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 1, 2, 4, 8
#: Flags for a directory on the way, which need not be readable where the system has `O_PATH`.
WAY = NAMED | os.O_DIRECTORY
#: The error of a path that changed during the call, which is then repeated.
_AGAIN = (errno.EAGAIN, errno.EINTR)


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(directory: int, path: str, flags: int, *, across: bool = False) -> int:
    """Open an existing path, relative and without ``..``, beneath an open directory. No link is followed in any part of it.

    With ``across`` other file systems may be mounted on the way; else that is refused too.

    Raises:
        OSError: ELOOP for a link, EXDEV for another file system, or an error of ``open(2)``.
        ValueError: the path is absolute, or contains ``..``.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is no path beneath a directory")
    flags |= os.O_CLOEXEC
    if has_openat2():
        return _open_resolved(directory, path, flags, 0 if across else _NO_XDEV)
    return _open_by_walk(directory, [part for part in parts if part not in ("", ".")], flags, across=across)


@cache
def has_openat2() -> bool:
    """Return whether the system has ``openat2(2)``: old kernels do not, and filters of system calls may refuse it."""
    try:
        os.close(_open_resolved(-100, ".", WAY | os.O_CLOEXEC, 0))  # AT_FDCWD
    except (OSError, AttributeError):
        return False
    return True


def _open_resolved(directory: int, path: str, flags: int, more: int) -> int:
    how = _How(flags, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | more)
    name, size = os.fsencode(path), ctypes.c_size_t(ctypes.sizeof(how))
    while True:
        fd = _libc().syscall(ctypes.c_long(_OPENAT2), directory, name, ctypes.byref(how), size)
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number not in _AGAIN:
            raise OSError(number, os.strerror(number), path)


def _open_by_walk(directory: int, parts: list[str], flags: int, *, across: bool) -> int:
    fd, device = os.dup(directory), os.fstat(directory).st_dev
    try:
        for part in parts[:-1]:
            fd = _open_next(fd, part, WAY | os.O_CLOEXEC)
            _check_device(fd, None if across else device)
        fd = _open_next(fd, parts[-1] if parts else ".", flags)
        _check_device(fd, None if across else device)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open_next(above: int, part: str, flags: int) -> int:
    """Open the next part and close the one before; if that fails, the one before stays open."""
    try:
        fd = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
    except NotADirectoryError as exc:
        if stat.S_ISLNK(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), part) from exc
        raise
    os.close(above)
    return fd


def _check_device(fd: int, device: int | None) -> None:
    if device is not None and os.fstat(fd).st_dev != device:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@cache
def _libc() -> Any:  # noqa: ANN401 - ctypes' own type
    return ctypes.CDLL(None, use_errno=True)
