"""What Landlock knows nothing of is refused by filters of system calls (``seccomp(2)``), for this process and all it starts.

Without a network: Landlock knows TCP only. Sockets of other families than unix cannot be made, nor those of datagrams; none
connects to anybody, and no call that the filter cannot see does either for it. Always: no process sets the resource limits of
another one, which could be ended by that.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from ..libc import prctl

_SET_SECCOMP, _FILTER = 22, 2  # PR_SET_SECCOMP of prctl(2)
#: The architecture's mark, and its numbers of: socket, connect, sendto, socketpair; io_uring_setup has one number.
_NUMBERS = {
    "x86_64": (0xC000003E, 41, 42, 44, 53),
    "aarch64": (0xC00000B7, 198, 203, 206, 199),
}
#: prlimit64, and that of the 32-bit programs of the same machine.
_PRLIMIT = {"x86_64": (302, 340), "aarch64": (261, 369)}
_IO_URING, _X32 = 425, 0x40000000
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54  # of classic BPF: 32 bits
_NUMBER_AT, _MARK_AT = 0, 4  # in struct seccomp_data
_FIRST_AT, _SECOND_AT, _THIRD_AT, _FIFTH_AT = 16, 24, 32, 48
#: Of a socket's type; the rest of it are flags.
_TYPES = 0xF
#: A line of a filter: what it does, where it goes on if so and if not, by a name or on the next line, and its operand.
_Line = tuple[int, str | None, str | None, int]


def can_filter() -> bool:
    """Whether the calls of this machine's architecture are known here."""
    return platform.machine() in _NUMBERS


def block_network() -> None:
    """Filter from now on; new privileges must be off already.

    Raises:
        OSError: the system has no filters.
    """
    _apply(_no_network(*_NUMBERS[platform.machine()]))


def block_limits_of_others() -> None:
    """Filter from now on, as above: resource limits are set of this process, named as 0, or only read.

    Raises:
        OSError: the system has no filters.
    """
    machine = platform.machine()
    _apply(_no_foreign_limits(_NUMBERS[machine][0], *_PRLIMIT[machine]))


def _apply(program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    result = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl(_SET_SECCOMP, _FILTER, result)


def _no_foreign_limits(mark: int, prlimit: int, narrow: int) -> bytes:
    """The filter: to 32-bit programs the call is refused as a whole."""
    lines: list[_Line] = [
        (_LOAD, None, None, _MARK_AT),
        (_EQUAL, "wide", None, mark),
        (_LOAD, None, None, _NUMBER_AT),
        (_EQUAL, "EPERM", "allow", narrow),
        (_LOAD, None, None, _NUMBER_AT),
        (_AT_LEAST, "ENOSYS", None, _X32),
        (_EQUAL, None, "allow", prlimit),
        (_LOAD, None, None, _FIRST_AT),
        (_EQUAL, "allow", None, 0),
        (_LOAD, None, None, _THIRD_AT),  # the new limits: none are given
        (_EQUAL, None, "EPERM", 0),
        (_LOAD, None, None, _THIRD_AT + 4),
        (_EQUAL, "allow", "EPERM", 0),
    ]
    return _assembled(lines, "ENOSYS", "EPERM", wide=4)


def _no_network(mark: int, socket: int, connect: int, sendto: int, socketpair: int) -> bytes:
    """The filter: who asks for what it knows gets the answer of a machine without a network."""
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
        (_LOAD, None, None, _FIFTH_AT),  # to whom: nobody, where it is connected
        (_EQUAL, None, "ENETUNREACH", 0),
        (_LOAD, None, None, _FIFTH_AT + 4),
        (_EQUAL, "allow", "ENETUNREACH", 0),
        (_LOAD, None, None, _FIRST_AT),
        (_EQUAL, None, "EAFNOSUPPORT", 1),  # AF_UNIX
        (_LOAD, None, None, _SECOND_AT),
        (_AND, None, None, _TYPES),
        (_EQUAL, "EAFNOSUPPORT", "allow", 2),  # SOCK_DGRAM: each message of it says whom it is for
    ]
    return _assembled(lines, "ENOSYS", "EAFNOSUPPORT", "ENETUNREACH", family=len(lines) - 5)


def _assembled(lines: list[_Line], *errors: str, **named: int) -> bytes:
    """A filter in the system's words: its lines, which know places by names, and what it answers."""
    answers = {"allow": _ALLOW} | {name: _REFUSE | getattr(errno, name) for name in errors}
    places = named | {name: len(lines) + index for index, name in enumerate(answers)}

    def step(name: str | None, here: int) -> int:
        return 0 if name is None else places[name] - here - 1

    code = [
        struct.pack("HBBI", operation, step(true, here), step(false, here), operand)
        for here, (operation, true, false, operand) in enumerate(lines)
    ]
    return b"".join(code + [struct.pack("HBBI", _RETURN, 0, 0, answer) for answer in answers.values()])
