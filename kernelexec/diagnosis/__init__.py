"""What went wrong, in plain terms: the kind of failure, the line of the user's own cell, why, and what to try next."""

from __future__ import annotations

from kernelexec.diagnosis.diagnosis import diagnose

__all__ = ["diagnose"]
