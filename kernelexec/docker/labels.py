"""Names and labels of our containers, and the directories of our files in them."""

from __future__ import annotations

import re

#: Every container of ours has this label; its value is the process that created it. Containers without it are never touched.
OWNER = "kernelexec.owner"
SESSION, WORKSPACE, ROOT, RUNTIME = "kernelexec.session", "kernelexec.workspace", "kernelexec.root", "kernelexec.runtime"
#: On containers of kernels that belong to no executor: the program that owns them.
CLIENT = "kernelexec.client"
#: The directory at which the launcher is mounted in every container of ours.
LAUNCHER_INSIDE = "/opt/kernelexec/launcher"
#: The directory of a mounted Python, for images without one. Short: it overwrites the paths in a loader and in a C library.
RUNTIME_INSIDE = "/opt/kernelexec/rt"
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]+")


def container_name(session: str, token: str, instance: str | None) -> str:
    """Return the name of a session's container: readable and unique."""
    readable = _UNFIT.sub("-", session)[:64]
    return "-".join(filter(None, ("kernelexec", readable, token[:8], instance)))
