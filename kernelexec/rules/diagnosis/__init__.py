"""The diagnosis of failed cells: the kind of failure, the line of the user's own cell, the cause, and hints."""

from __future__ import annotations

from kernelexec.rules.diagnosis.diagnosis import diagnose, find_undefined_name

__all__ = ["diagnose", "find_undefined_name"]
