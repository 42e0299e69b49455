"""``python -m kernelexec`` is the command ``kernelexec``."""

from __future__ import annotations

from kernelexec.cli import main

main()
