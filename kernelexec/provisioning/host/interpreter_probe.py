"""What an interpreter says of itself. It may be anybody's, and import what anybody has written: it is confined before."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.writable_paths import unloaded
from kernelexec.provisioning.launch.kernelspec import GUARD, LAUNCHER

_SECONDS = 30.0
#: It writes nothing, and reaches nobody.
_CONFINED = {"writable": [], "hidden": [], "readable": [], "network": "no-network" not in platform.HERE.confinement}


def ask(python: str, program: str) -> str | None:
    """What a program prints in that interpreter; None where it cannot be started, or fails."""
    argv = [sys.executable, *GUARD, str(LAUNCHER), protocol.CONFINED_FLAG, python, "-I", "-c", program]
    options = protocol.LaunchOptions(confinement={**_CONFINED, "temporary": tempfile.gettempdir()})
    environ = {**unloaded(os.environ), **options.as_environment()}
    try:
        said = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=True, cwd="/", env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.decode("utf-8", "replace")
