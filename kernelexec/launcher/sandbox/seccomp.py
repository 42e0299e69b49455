"""Filters of system calls (``seccomp(2)``) for this process and its later children, where Landlock has no rules.

``block_network``: Landlock covers TCP only. The filter refuses sockets of other families than unix, datagram sockets and all
connections, and calls that would pass the filter unseen (io_uring). ``block_foreign_access``: no process may set the resource
limits of another one, which could end it, or use the keyrings of the kernel (``keyrings(7)``), which all sessions of a login
share without a file; nor, without a namespace of their own, the objects of System V (``sysvipc(7)``).
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from ..platform import prctl

_SET_SECCOMP, _FILTER = 22, 2  # PR_SET_SECCOMP of prctl(2)
#: The architecture's mark, and its numbers of: socket, connect, sendto, socketpair; io_uring_setup has one number.
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
_IO_URING, _X32 = 425, 0x40000000
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54  # of classic BPF: 32 bits
_NUMBER_AT, _MARK_AT = 0, 4  # in struct seccomp_data
_FIRST_AT, _SECOND_AT, _THIRD_AT, _FIFTH_AT = 16, 24, 32, 48
#: Mask of a socket's type; the other bits are flags.
_TYPES = 0xF
#: A line of a filter: operation, label to jump to if true, and if false (None: the next line), operand.
_Line = tuple[int, str | None, str | None, int]
_Ranges = tuple[tuple[int, int], ...]


def block_network() -> None:
    """Refuse network access from now on; ``set_no_new_privileges`` must have been called.

    Raises:
        OSError: the system has no filters, or this module does not know the processor's system calls.
    """
    if platform.machine() not in _NUMBERS:
        raise OSError("this processor's system calls are not known")
    _apply(_build_network_filter(*_NUMBERS[platform.machine()]))


def block_foreign_access(*, allows_system_v: bool) -> None:
    """Refuse keyrings, and to set the limits of other processes; ``set_no_new_privileges`` must have been called.

    Limits can be set for this process, named as 0; those of others can be read. Unless ``allows_system_v``, the objects of
    System V are refused too, as on a system without them.

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
    result = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl(_SET_SECCOMP, _FILTER, result)


def _build_access_filter(mark: int, prlimit: tuple[int, int], wide: _Ranges, narrow: _Ranges) -> bytes:
    """Build the filter of prlimit and of ranges of calls. For 32-bit programs it refuses prlimit as a whole.

    ``prlimit`` has the numbers for 64-bit and 32-bit programs; ``wide`` and ``narrow`` are the ranges that are refused.
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
    lines: list[_Line] = []
    for first, last in ranges:
        lines += [(_AT_LEAST, None, "allow", first), (_AT_LEAST, None, "ENOSYS", last + 1)]
    *others, (operation, _, refused, after) = lines
    return [*others, (operation, "allow", refused, after)]


def _build_network_filter(mark: int, socket: int, connect: int, sendto: int, socketpair: int) -> bytes:
    """Build the filter of the network. It answers like a machine without a network."""
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
    """Assemble the lines of a filter, with jumps to labels, and its answers to classic BPF."""
    answers = {"allow": _ALLOW} | {name: _REFUSE | getattr(errno, name) for name in errors}
    positions = labels | {name: len(lines) + index for index, name in enumerate(answers)}

    def step(name: str | None, position: int) -> int:
        return 0 if name is None else positions[name] - position - 1

    code = [
        struct.pack("HBBI", operation, step(true, position), step(false, position), operand)
        for position, (operation, true, false, operand) in enumerate(lines)
    ]
    return b"".join(code + [struct.pack("HBBI", _RETURN, 0, 0, answer) for answer in answers.values()])
