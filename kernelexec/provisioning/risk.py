"""What is said of kernels that are in no container of their own: once per process, on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress

_SECRETS = "The environment is scrubbed of what looks like secrets."
_SAID = {
    "local": (
        "kernelexec: isolation=local: code runs on this machine with your own rights; it can read and change your files. "
        f"{_SECRETS} Use containers for code that you do not trust.\n"
    ),
    "container-host": (
        "kernelexec: isolation=container-host: code runs in the container that this process is in, with its rights. "
        f"{_SECRETS} KERNELEXEC_FORCE_CONTAINER=1 gives kernels containers of their own.\n"
    ),
}
_told: set[str] = set()


def tell_risk(isolation: str) -> None:
    """Say what such kernels can do, if that was not said yet."""
    if isolation in _SAID and isolation not in _told:
        _told.add(isolation)
        with suppress(AttributeError, OSError):  # a stderr that is closed or full is no reason not to run
            sys.stderr.write(_SAID[isolation])
