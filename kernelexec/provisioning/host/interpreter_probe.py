"""What an interpreter says of itself. It may be anybody's, and import what anybody has written: it is confined before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from kernelexec.provisioning import platform
from kernelexec.provisioning.host.writable_paths import unloaded
from kernelexec.provisioning.launch.kernelspec import GUARD, LAUNCHER, ORDER

_SECONDS = 30.0
#: It writes nothing, and reaches nobody.
_CONFINED = {"writable": [], "hidden": [], "readable": [], "network": "no-network" not in platform.HERE.confinement}


def ask(python: str, program: str) -> str | None:
    """What a program prints in that interpreter; None where it cannot be started, or fails."""
    argv = [sys.executable, *GUARD, str(LAUNCHER), "--confined", python, "-I", "-c", program]
    order = json.dumps({"confinement": {**_CONFINED, "temporary": tempfile.gettempdir()}})
    environ = {**unloaded(os.environ), ORDER: order}
    try:
        said = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=True, cwd="/", env=environ)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.decode("utf-8", "replace")
