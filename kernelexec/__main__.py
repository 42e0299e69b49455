"""``python -m kernelexec`` is the command ``kernelexec``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # the current directory may be gone
    # `python -m` puts the current directory first: a random.py of an agent there would be imported into this program.
    if sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - as it is written there
        del sys.path[0]  # what lies where the code runs is not ours

from kernelexec.cli import run_program

run_program()
