"""What a living session uses: its memory as its kernel tells it, and its figures as the place of its kernels does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeGuard

from kernelexec.text import clean_text

#: ``none``: no kernel lives; the next cell starts one.
KernelStatus = Literal["idle", "busy", "starting", "none"]

_BIGGEST, _NAME_CHARS, _LARGEST = 5, 100, 2**60
_KIB, _MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Holder:
    """A variable of the user's and what its value holds, in bytes."""

    name: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.name} {size_text(self.size_bytes)}"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How much memory a kernel uses with all that it started, of how much; and its biggest variables, the biggest first.

    ``high`` says that it is 80 % of the limit or more. ``kills`` counts what was killed for want of memory so far.
    """

    used_bytes: int
    limit_bytes: int
    high: bool = False
    kills: int = 0
    biggest: tuple[Holder, ...] = ()

    @classmethod
    def of(cls, said: object) -> Self | None:
        """From what a kernel said; None where it makes no sense."""
        if not isinstance(said, dict):
            return None
        used, limit, kills, biggest = (said.get(name) for name in ("used", "limit", "kills", "biggest"))
        if not (_is_size(used) and _is_size(limit) and _is_size(kills)):
            return None
        found = (_holder(item) for item in (biggest if isinstance(biggest, list) else [])[:_BIGGEST])
        return cls(used, limit, said.get("high") is True, kills, tuple(filter(None, found)))

    @property
    def names(self) -> str:
        """The biggest variables in words; empty where none is known."""
        return ", ".join(map(str, self.biggest))

    def __str__(self) -> str:
        limit = size_text(self.limit_bytes)
        used = f"{self.used_bytes // _MIB} of {limit}" if limit.endswith(" MiB") else f"{size_text(self.used_bytes)} of {limit}"
        return f"memory: {used} in use" + (f"; biggest: {self.names}" if self.names else "")


@dataclass(frozen=True, slots=True)
class Stats:
    """What a session's kernel uses now, with all that it started. None where it cannot be had, as without a living kernel.

    ``cpu_percent`` is that of one processor, since the call before, or since the kernel's start for the first call.
    ``pids`` counts processes and threads. Of memory, what the system can take back at once is not counted.
    """

    isolation: str
    kernel: KernelStatus
    kernel_epoch: int
    uptime_seconds: float | None = None
    """Since the kernel served."""
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    cpu_seconds: float | None = None
    """Since the kernel's process started."""
    cpu_percent: float | None = None
    cpus: float | None = None
    """How many processors' time it may get."""
    pids: int | None = None
    pids_limit: int | None = None
    container: str | None = None
    """The id of its container; the next three are the container's too."""
    container_name: str | None = None
    image: str | None = None
    network: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class LimitsSet:
    """The limits that a session has from now on. None is none.

    ``not_applied`` says what could not be had, and why: a kernel on this machine has no memory or processor limit of its own.
    """

    memory_bytes: int | None
    cpus: float | None
    timeout: float
    not_applied: tuple[str, ...] = ()


def size_text(size: int) -> str:
    """A size as a reader wants it: in whole GiB where it is that, else in MiB, or KiB."""
    if size and size % (_KIB * _MIB) == 0:
        return f"{size // (_KIB * _MIB)} GiB"
    if size < _MIB:
        return f"{size / _KIB:.0f} KiB"
    return f"{size // _MIB} MiB" if size % _MIB == 0 or size >= 10 * _MIB else f"{size / _MIB:.1f} MiB"


def _holder(said: object) -> Holder | None:
    match said:
        case [str() as name, size] if _is_size(size):
            return Holder(clean_text(name[:_NAME_CHARS]), size)
    return None


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
