"""What our containers are called and carry: the one place where it is applied, and matched."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from kernelexec.provisioning.runtime.owned_directory import Owner

#: Every container of ours carries it, with the process that made it as its value; what does not is never touched.
OWNER = "kernelexec.owner"
SESSION, WORKSPACE, ROOT, RUNTIME = "kernelexec.session", "kernelexec.workspace", "kernelexec.root", "kernelexec.runtime"
#: On the containers of kernels that are not an executor's: whose they are.
CLIENT = "kernelexec.client"
#: What holds the kernel: a pipe, which a new owner can take up, or a lease.
HELD_BY = "kernelexec.held-by"
#: Where the launcher is mounted in every container of ours.
LAUNCHER_INSIDE = "/opt/kernelexec/inkernel"
#: Where a Python is mounted if an image has none. Short: it is written over the paths of a loader and of a C library.
RUNTIME_INSIDE = "/opt/kernelexec/rt"
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]+")


def labels_of(*, session: str, workspace: Path, root: Path, runtime: Path, held_by: str = "pipe") -> dict[str, str]:
    """The labels of a kernel's container."""
    return {
        OWNER: json.dumps(asdict(Owner.this(locked=True))),
        SESSION: session,
        WORKSPACE: str(workspace),
        ROOT: str(root),
        RUNTIME: str(runtime),
        HELD_BY: held_by,
    }


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """The process that made a container; None where its label says nothing."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return Owner.said(json.loads(labels[OWNER]))
    return None


def container_name(session: str, token: str, instance: str | None) -> str:
    """What a session's container is called: readable, and like no other's."""
    readable = _UNFIT.sub("-", session)[:64]
    return "-".join(filter(None, ("kernelexec", readable, token[:8], instance)))
