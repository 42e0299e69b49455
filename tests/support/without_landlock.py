"""``python without_landlock.py PROGRAM ARGUMENT...`` runs a program on a machine that, to it, has no Landlock."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_CREATE_RULESET = 444

lines = [
    struct.pack("HBBI", _LOAD, 0, 0, 0),
    struct.pack("HBBI", _EQUAL, 0, 1, _CREATE_RULESET),
    struct.pack("HBBI", _RETURN, 0, 0, 0x00050000 | errno.ENOSYS),
    struct.pack("HBBI", _RETURN, 0, 0, 0x7FFF0000),
]
code = ctypes.create_string_buffer(b"".join(lines))
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
if failed or libc.prctl(_SET_SECCOMP, _FILTER, struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)), 0, 0):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - what it is for
