"""Memory without a name that processes share: of ``mmap.mmap(-1, ...)``, and of multiprocessing's locks and values.

A fork shares it with this process instead of copying it. So its content is kept with a checkpoint, and each kernel that goes
on from that has its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path

#: The most bytes that are kept with a checkpoint.
_MOST_BYTES = 64 * 1024 * 1024
#: Shared mappings of files without a name, in /proc/self/maps; those of System V outlive their processes.
_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) r([w-])([x-])s \S+ \S+ \d+ +(?!/SYSV)[^\n]* \(deleted\)$", re.MULTILINE)
#: Pages of such mappings in this process, in /proc/self/status, which is read in a fiftieth of the time.
_NO_PAGES = b"\nRssShmem:\t       0 kB\n"
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class SharedMemory:
    """The shared memory of this process, as it is now."""

    def __init__(self) -> None:
        parts = []
        maps = b"" if _NO_PAGES in Path("/proc/self/status").read_bytes() else Path("/proc/self/maps").read_bytes()
        for mapping in _MAPPING.finditer(maps):
            start, end = int(mapping[1], 16), int(mapping[2], 16)
            protection = mmap.PROT_READ | (mapping[3] == b"w") * mmap.PROT_WRITE | (mapping[4] == b"x") * mmap.PROT_EXEC
            parts.append((start, end - start, protection))
        size = sum(length for _, length, _ in parts)
        self.excess_bytes = size if size > _MOST_BYTES else 0
        """Its size if it is more than is kept, which is nothing then; else 0."""
        kept = () if self.excess_bytes else parts
        self._parts = [(start, protection, ctypes.string_at(start, length)) for start, length, protection in kept]
        """Address, protection and content of each part."""

    def separate(self) -> None:
        """Put a copy in its place that no other process has.

        Raises:
            OSError: the system has no memory for it.
        """
        if not self._parts:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_FIXED
        for start, protection, content in self._parts:
            if libc.mmap(start, len(content), protection | mmap.PROT_WRITE, flags, -1, 0) == _FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            ctypes.memmove(start, content, len(content))
            if not protection & mmap.PROT_WRITE:
                libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(content)), protection)
