"""Restrictions of Linux for this process and later children: rights to named files, and filters of system calls.

Landlock (``landlock(7)``) gives the rights. Landlock's system calls have the same number on every architecture, and no
functions in the C library. Filters (``seccomp(2)``) serve where Landlock has no rules: networks other than TCP, resource limits
of other processes, and objects shared without a file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
from contextlib import suppress

from ..platform import prctl, syscall

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)

WRITE_FILE, READ_FILE = 1 << 1, 1 << 2
_REMOVE = 1 << 4 | 1 << 5
_MAKE_DEVICES = 1 << 6 | 1 << 11
_MAKE = 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12
REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15
#: Rights to write in a workspace: all except creating devices.
WRITE = WRITE_FILE | _REMOVE | _MAKE | REFER | TRUNCATE
#: Rights for files other than directories. Linux refuses a rule for a file with other rights.
_OF_FILES = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
#: The ABI version that introduced a right. Other rights are from version 1.
_SINCE = {REFER: 2, TRUNCATE: 3, IOCTL: 5}
_NETWORK_SINCE, _SCOPES_SINCE = 4, 6
_TCP = 1 << 0 | 1 << 1
_SCOPES = 1 << 0 | 1 << 1  # abstract unix sockets, and signals
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_SET_SECCOMP, _FILTER = 22, 2  # PR_SET_SECCOMP of prctl(2)
#: The architecture's mark, and the numbers of socket, connect, sendto, socketpair. io_uring_setup has the same everywhere.
_NUMBERS = {
    "x86_64": (0xC000003E, 41, 42, 44, 53),
    "aarch64": (0xC00000B7, 198, 203, 206, 199),
}
#: The numbers of prlimit64 for 64-bit and 32-bit programs.
_PRLIMIT = {"x86_64": (302, 340), "aarch64": (261, 369)}
#: Ranges of numbers for 64-bit and 32-bit programs: first and last. Of add_key, request_key and keyctl:
_KEYS = {"x86_64": (((248, 250),), ((286, 288),)), "aarch64": (((217, 219),), ((309, 311),))}
#: Of System V's shared memory, semaphores and message queues.
_SYSTEM_V = {
    "x86_64": (((29, 31), (64, 71), (220, 220)), ((117, 117), (393, 402), (420, 420))),
    "aarch64": (((186, 197),), ((298, 308), (312, 312), (420, 420))),
}
#: x86-64 has a second set of numbers from ``_X32`` on, with the same mark: programs could pass a filter by it.
_IO_URING, _X32 = 425, 0x40000000
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54  # of classic BPF: 32 bits
_NUMBER_AT, _MARK_AT = 0, 4  # in struct seccomp_data
_FIRST_AT, _SECOND_AT, _THIRD_AT, _FIFTH_AT = 16, 24, 32, 48
#: Mask of a socket's type; the other bits are flags.
_TYPES = 0xF
#: A line of a filter: operation, the label to jump to if true, the label if false (None: the next line), operand.
_Line = tuple[int, str | None, str | None, int]
_Ranges = tuple[tuple[int, int], ...]


class _Attributes(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


def read_abi_version() -> int:
    """Return the version of Landlock's ABI, or 0 if Landlock is missing or disabled."""
    try:
        return max(0, syscall(_CREATE, None, 0, _VERSION))
    except (OSError, AttributeError):
        return 0


class Ruleset:
    """A set of allowed rights. All other rights of the handled kinds are refused: files, TCP if ``offline``, signals."""

    def __init__(self, *, offline: bool) -> None:
        """Create an empty ruleset.

        Raises:
            OSError: the system has no Landlock.
        """
        self.version = read_abi_version()
        self.handled = sum(
            right
            for right in (READ_FILE, WRITE_FILE, _REMOVE, _MAKE, _MAKE_DEVICES, REFER, TRUNCATE, IOCTL)
            if _SINCE.get(right, 1) <= self.version
        )
        network = _TCP if offline and self.version >= _NETWORK_SINCE else 0
        result = _Attributes(self.handled, network, _SCOPES if self.has_scopes else 0)
        # The structure of each version: rights to files, then also to the network, then also scopes.
        size = 8 if self.version < _NETWORK_SINCE else 16 if not self.has_scopes else ctypes.sizeof(result)
        self._fd = syscall(_CREATE, ctypes.byref(result), ctypes.c_size_t(size), 0)

    @property
    def has_scopes(self) -> bool:
        """Whether signals to outside processes and connections to their abstract unix sockets are refused."""
        return self.version >= _SCOPES_SINCE

    def allow(self, path: str | os.PathLike[str], rights: int, *, follow: bool = True) -> None:
        """Allow a path and the tree beneath. A missing path, or a link without ``follow``, is skipped."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
        except OSError:
            return
        try:
            self.allow_open(fd, rights)
        finally:
            os.close(fd)

    def allow_open(self, fd: int, rights: int) -> None:
        """Allow an open file, or a directory and the tree beneath. A link is skipped."""
        kind = os.fstat(fd).st_mode
        rights &= self.handled if stat.S_ISDIR(kind) else self.handled & _OF_FILES
        if rights and not stat.S_ISLNK(kind):
            with suppress(OSError):  # not a file of a file system
                syscall(_ADD, self._fd, _BENEATH, ctypes.byref(_Beneath(rights, fd)), 0)

    def enforce(self) -> None:
        """Apply the ruleset to this thread and its later children, for good."""
        try:
            syscall(_RESTRICT, self._fd, 0)
        finally:
            os.close(self._fd)


def set_no_new_privileges() -> None:
    """Deny later programs more privileges than this process has, whatever bits their files have."""
    prctl(_NO_NEW_PRIVILEGES, 1)


def allow_except(ruleset: Ruleset, top: str, rights: int, excluded: list[str]) -> None:
    """Allow a tree, by an absolute path without links, except ``excluded`` paths. Allow nothing if the tree is missing.

    Landlock has no exceptions. So neither excluded paths nor the directories above them get the rights, but all other entries
    of these directories do.
    """
    above = {path[:at] for path in excluded for at, char in enumerate(path) if char == "/"}

    def allow(path: str, fd: int) -> None:
        if path in excluded:
            return
        if path not in above:
            ruleset.allow_open(fd, rights)
            return
        directory = os.open(".", _DIRECTORY, dir_fd=fd)
        try:
            for name in os.listdir(directory):  # noqa: PTH208 - of an open directory
                with suppress(OSError):  # removed meanwhile
                    inner = os.open(name, _build_open_flags(), dir_fd=directory)
                    try:
                        allow(f"{path}/{name}", inner)
                    finally:
                        os.close(inner)
        finally:
            os.close(directory)

    with suppress(OSError):
        fd = _open_path(top)
        try:
            allow(top.rstrip("/"), fd)
        finally:
            os.close(fd)


def _open_path(path: str) -> int:
    """Open a path without following links."""
    fd = os.open("/", _build_open_flags())
    for name in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(name, _build_open_flags(), dir_fd=above)
        finally:
            os.close(above)
    return fd


def _build_open_flags() -> int:
    """Return the flags that open an entry. A function, since other systems lack some of them."""
    return os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def block_network() -> None:
    """Refuse network access from now on. Call ``set_no_new_privileges`` first.

    Landlock covers TCP only. The filter refuses sockets of all families but unix, datagram sockets, all connections, and
    io_uring, whose calls no filter sees.

    Raises:
        OSError: the system has no filters, or this module does not know the processor's system calls.
    """
    if platform.machine() not in _NUMBERS:
        raise OSError("this processor's system calls are not known")
    _apply(_build_network_filter(*_NUMBERS[platform.machine()]))


def block_foreign_access(*, allows_system_v: bool) -> None:
    """Refuse keyrings and changes of other processes' limits. Call ``set_no_new_privileges`` first.

    A process can set its own limits, by the id 0, and read all limits: a low limit could end another process. All sessions of
    a login share the keyrings of the kernel (``keyrings(7)``) without a file. Unless ``allows_system_v``, System V objects
    (``sysvipc(7)``) are refused too, as on a system without them.

    Raises:
        OSError: the system has no filters.
        LookupError: this module does not know the processor's system calls.
    """
    machine = platform.machine()
    system_v = _SYSTEM_V[machine] if not allows_system_v else ((), ())
    wide, narrow = (tuple(sorted(keys + others)) for keys, others in zip(_KEYS[machine], system_v, strict=True))
    _apply(_build_access_filter(_NUMBERS[machine][0], _PRLIMIT[machine], wide, narrow))


def _apply(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of lines of 8 bytes, padding, and a pointer, so ``code`` must live until the call.
    result = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl(_SET_SECCOMP, _FILTER, result)


def _build_access_filter(mark: int, prlimit: tuple[int, int], wide: _Ranges, narrow: _Ranges) -> bytes:
    """Build the filter of prlimit and of ranges of calls. For 32-bit programs the filter refuses prlimit as a whole.

    ``prlimit`` has the numbers for 64-bit and 32-bit programs. ``wide`` and ``narrow`` are the ranges of refused calls.
    """
    narrow_lines: list[_Line] = [
        (_LOAD, None, None, _MARK_AT),
        (_EQUAL, "wide", None, mark),
        (_LOAD, None, None, _NUMBER_AT),
        (_EQUAL, "EPERM", None, prlimit[1]),
        *_refuse_ranges(narrow),
    ]
    wide_lines: list[_Line] = [
        (_LOAD, None, None, _NUMBER_AT),
        (_AT_LEAST, "ENOSYS", None, _X32),
        (_EQUAL, "limits", None, prlimit[0]),
        *_refuse_ranges(wide),
    ]
    lines: list[_Line] = [
        *narrow_lines,
        *wide_lines,
        # The process id is 32 bits. A pointer is 64, so each half is compared; the low half is first on these processors.
        (_LOAD, None, None, _FIRST_AT),
        (_EQUAL, "allow", None, 0),
        (_LOAD, None, None, _THIRD_AT),  # the new limits: NULL only reads
        (_EQUAL, None, "EPERM", 0),
        (_LOAD, None, None, _THIRD_AT + 4),
        (_EQUAL, "allow", "EPERM", 0),
    ]
    return _assemble(lines, "ENOSYS", "EPERM", wide=len(narrow_lines), limits=len(narrow_lines) + len(wide_lines))


def _refuse_ranges(ranges: _Ranges) -> list[_Line]:
    """Return lines that refuse the calls in ascending ranges and allow all others."""
    # The last line allows numbers above all ranges, instead of running on.
    lines: list[_Line] = []
    for first, last in ranges:
        lines += [(_AT_LEAST, None, "allow", first), (_AT_LEAST, None, "ENOSYS", last + 1)]
    *others, (operation, _, refused, after) = lines
    return [*others, (operation, "allow", refused, after)]


def _build_network_filter(mark: int, socket: int, connect: int, sendto: int, socketpair: int) -> bytes:
    """Build the filter of the network, with the errors of a machine without a network."""
    # A filter sees registers, never memory: so ``sendto`` is judged by its pointer, and datagram sockets are refused at all,
    # whose ``sendmsg`` has the address in memory.
    lines: list[_Line] = [
        (_LOAD, None, None, _MARK_AT),
        (_EQUAL, None, "ENOSYS", mark),
        (_LOAD, None, None, _NUMBER_AT),
        (_AT_LEAST, "ENOSYS", None, _X32),
        (_EQUAL, "ENOSYS", None, _IO_URING),
        (_EQUAL, "ENETUNREACH", None, connect),
        (_EQUAL, "family", None, socket),
        (_EQUAL, "family", None, socketpair),
        (_EQUAL, None, "allow", sendto),
        (_LOAD, None, None, _FIFTH_AT),  # the address: NULL for a connected socket
        (_EQUAL, None, "ENETUNREACH", 0),
        (_LOAD, None, None, _FIFTH_AT + 4),
        (_EQUAL, "allow", "ENETUNREACH", 0),
        (_LOAD, None, None, _FIRST_AT),
        (_EQUAL, None, "EAFNOSUPPORT", 1),  # AF_UNIX
        (_LOAD, None, None, _SECOND_AT),
        (_AND, None, None, _TYPES),
        (_EQUAL, "EAFNOSUPPORT", "allow", 2),  # SOCK_DGRAM: each message has an address
    ]
    return _assemble(lines, "ENOSYS", "EAFNOSUPPORT", "ENETUNREACH", family=len(lines) - 5)


def _assemble(lines: list[_Line], *errors: str, **labels: int) -> bytes:
    """Assemble the lines of a filter and the answers to classic BPF, with jumps to labels."""
    answers = {"allow": _ALLOW} | {name: _REFUSE | getattr(errno, name) for name in errors}
    positions = labels | {name: len(lines) + index for index, name in enumerate(answers)}

    # Jumps count from the next line and go forward only, at most 255 lines.
    def step(name: str | None, position: int) -> int:
        return 0 if name is None else positions[name] - position - 1

    code = [
        struct.pack("HBBI", operation, step(true, position), step(false, position), operand)
        for position, (operation, true, false, operand) in enumerate(lines)
    ]
    return b"".join(code + [struct.pack("HBBI", _RETURN, 0, 0, answer) for answer in answers.values()])
