"""The memory that checkpoints cost, pages that a checkpoint shares with no other process; and which of them are dropped."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

#: The least seconds between two measurements: the system walks through all pages of each process.
_PAUSE_SECONDS = 1.0
_PEER = struct.Struct("3i")


class MemoryCosts:
    """The private pages of each checkpoint (``Private_Dirty`` of proc(5)), measured in a thread."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._measured = 0.0
        self._thread: threading.Thread | None = None
        self.connecting = threading.Lock()
        """Held while the thread has connections open, which a fork at that time would copy."""

    def measure(self, sockets: Mapping[int, Path]) -> None:
        """Measure the checkpoints with these sockets, unless that was done a moment ago."""
        if (self._thread is not None and self._thread.is_alive()) or time.monotonic() - self._measured < _PAUSE_SECONDS:
            return
        self._measured = time.monotonic()
        self._thread = threading.Thread(target=self._measure, args=(sockets,), name="checkpoints", daemon=True)
        self._thread.start()

    def take_excess(self, requested: Collection[int], limit_bytes: int) -> list[int]:
        """Return, once, the checkpoints that are to be dropped since all together cost more than ``limit_bytes``."""
        excess = find_excess_bytes(self._bytes, requested, limit_bytes)
        self._bytes = {number: cost for number, cost in self._bytes.items() if number not in excess}
        return excess

    def _measure(self, sockets: Mapping[int, Path]) -> None:
        processes, costs = {}, {}
        with self.connecting:
            for number, path in sockets.items():
                with suppress(OSError):
                    processes[number] = _find_process(path)
        for number, pid in processes.items():
            with suppress(OSError, ValueError):
                costs[number] = _read_private_bytes(pid)
        self._bytes = costs


def _find_process(path: Path) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as connection:
        connection.connect(str(path))
        pid: int = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
    return pid


def _read_private_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    return 0


def find_excess(numbers: Collection[int], requested: Collection[int], limit: int) -> list[int]:
    """Return the checkpoints over the limit: ``limit`` of the requested ones stay, and automatic ones in the room left.

    The newest automatic one stays in any case, since the session goes on from it if its kernel ends.
    """
    by_request = sorted(number for number in numbers if number in requested)
    automatic = sorted(number for number in numbers if number not in requested)
    room = max(1, limit - len(by_request))
    return [*by_request[:-limit], *automatic[:-room]]


def find_excess_bytes(costs: Mapping[int, int], requested: Collection[int], limit_bytes: int) -> list[int]:
    """Return the checkpoints without which the others, or the newest alone, cost at most so much: automatic ones first."""
    excess, left = [], sum(costs.values())
    for number in sorted(set(costs) - {max(costs, default=0)}, key=lambda each: (each in requested, each)):
        if left <= limit_bytes:
            break
        excess.append(number)
        left -= costs[number]
    return excess
