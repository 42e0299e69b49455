"""A log of each session for people: cells, their output and ends, and the kernels, written as they happen."""

from __future__ import annotations

from kernelexec.records.log.log import ContainerLog, check

__all__ = ["ContainerLog", "check"]
