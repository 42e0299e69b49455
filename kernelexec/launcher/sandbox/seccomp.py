"""Filters of system calls (``seccomp(2)``) for this process and its later children, where Landlock has no rules.

``block_network``: Landlock covers TCP only. The filter refuses sockets of other families than unix, datagram sockets and all
connections, and calls that would pass the filter unseen (io_uring). ``block_foreign_access``: no process may set the resource
limits of another one, which could end it, or use the keyrings of the kernel (``keyrings(7)``), which all sessions of a login
share without a file.
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
#: The first of three successive numbers, of add_key, request_key and keyctl, for 64-bit and 32-bit programs.
_KEYS = {"x86_64": (248, 286), "aarch64": (217, 309)}
_KEY_CALLS = 3
_IO_URING, _X32 = 425, 0x40000000
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54  # of classic BPF: 32 bits
_NUMBER_AT, _MARK_AT = 0, 4  # in struct seccomp_data
_FIRST_AT, _SECOND_AT, _THIRD_AT, _FIFTH_AT = 16, 24, 32, 48
#: Mask of a socket's type; the other bits are flags.
_TYPES = 0xF
#: A line of a filter: operation, label to jump to if true, and if false (None: the next line), operand.
_Line = tuple[int, str | None, str | None, int]


def block_network() -> None:
    """Refuse network access from now on; ``set_no_new_privileges`` must have been called.

    Raises:
        OSError: the system has no filters, or this module does not know the processor's system calls.
    """
    if platform.machine() not in _NUMBERS:
        raise OSError("this processor's system calls are not known")
    _apply(_build_network_filter(*_NUMBERS[platform.machine()]))


def block_foreign_access() -> None:
    """Refuse keyrings, and to set the limits of other processes; ``set_no_new_privileges`` must have been called.

    Limits can be set for this process, named as 0; those of others can be read.

    Raises:
        OSError: the system has no filters.
    """
    machine = platform.machine()
    _apply(_build_access_filter(_NUMBERS[machine][0], *zip(_PRLIMIT[machine], _KEYS[machine], strict=True)))


def _apply(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    result = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl(_SET_SECCOMP, _FILTER, result)


def _build_access_filter(mark: int, wide: tuple[int, int], narrow: tuple[int, int]) -> bytes:
    """Build the filter of prlimit and of keyrings. For 32-bit programs it refuses prlimit as a whole.

    ``wide`` and ``narrow`` are the numbers of prlimit64 and of add_key.
    """
    prlimit, keys = wide
    narrow_prlimit, narrow_keys = narrow
    lines: list[_Line] = [
        (_LOAD, None, None, _MARK_AT),
        (_EQUAL, "wide", None, mark),
        (_LOAD, None, None, _NUMBER_AT),
        (_EQUAL, "EPERM", None, narrow_prlimit),
        (_AT_LEAST, None, "allow", narrow_keys),
        (_AT_LEAST, "allow", "ENOSYS", narrow_keys + _KEY_CALLS),
        (_LOAD, None, None, _NUMBER_AT),
        (_AT_LEAST, "ENOSYS", None, _X32),
        (_EQUAL, "limits", None, prlimit),
        (_AT_LEAST, None, "allow", keys),
        (_AT_LEAST, "allow", "ENOSYS", keys + _KEY_CALLS),
        (_LOAD, None, None, _FIRST_AT),
        (_EQUAL, "allow", None, 0),
        (_LOAD, None, None, _THIRD_AT),  # the new limits: NULL only reads
        (_EQUAL, None, "EPERM", 0),
        (_LOAD, None, None, _THIRD_AT + 4),
        (_EQUAL, "allow", "EPERM", 0),
    ]
    return _assemble(lines, "ENOSYS", "EPERM", wide=6, limits=11)


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
