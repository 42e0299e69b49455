"""The command line. Results go to stdout, everything about them to stderr; the exit status tells."""

from __future__ import annotations

from kernelexec.cli.app import main

__all__ = ["main"]
