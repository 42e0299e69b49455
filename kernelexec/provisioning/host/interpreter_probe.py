"""Short programs in an interpreter of the user's choice; it may import untrusted files, so it is confined first."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.writable_paths import without_untrusted
from kernelexec.provisioning.launch.kernelspec import GUARD, LAUNCHER

_SECONDS = 30.0
#: The interpreter writes no files and has no network.
_RULES = {"writable": [], "hidden": [], "readable": [], "network": "no-network" not in platform.PLATFORM.confinement}


def run_confined(python: str, program: str) -> str | None:
    """Return the output of a program in that interpreter; None if it cannot be started or fails."""
    argv = [sys.executable, *GUARD, str(LAUNCHER), protocol.CONFINED_FLAG, python, "-I", "-c", program]
    options = protocol.LaunchOptions(confinement={**_RULES, "temporary": tempfile.gettempdir()})
    environ = {**without_untrusted(os.environ), **options.as_environment()}
    try:
        completed = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=True, cwd="/", env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.decode("utf-8", "replace")
