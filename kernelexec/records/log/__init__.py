"""A log of each session for people: what ran, what came out, how it ended, and what became of its kernels, as it happened."""

from __future__ import annotations

from kernelexec.records.log.log import ContainerLog, check

__all__ = ["ContainerLog", "check"]
