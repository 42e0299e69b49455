"""The command line. Results go to stdout, messages to stderr; the exit status shows success."""

from __future__ import annotations

from kernelexec.cli.application import main

__all__ = ["main"]
