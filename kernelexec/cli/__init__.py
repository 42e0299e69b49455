"""The command line. Results go to stdout, messages to stderr; the exit status shows success."""

from __future__ import annotations

from kernelexec.imports import import_without_collection

__all__ = ["main"]


def main() -> None:
    """Run the command line: see ``application.main``."""
    import_without_collection("kernelexec.cli.application")
    from kernelexec.cli import application

    application.main()
