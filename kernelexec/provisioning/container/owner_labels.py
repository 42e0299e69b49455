"""Labels by which a container names the process, the session and the directories that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from kernelexec.docker.labels import OWNER, ROOT, RUNTIME, SESSION, WORKSPACE
from kernelexec.provisioning.runtime.owned_directory import OwnerRecord


def build_labels(*, session: str, workspace: Path, root: Path, runtime: Path) -> dict[str, str]:
    """Return the labels of a kernel's container."""
    return {
        OWNER: json.dumps(asdict(OwnerRecord.of_this_process(locked=True))),
        SESSION: session,
        WORKSPACE: str(workspace),
        ROOT: str(root),
        RUNTIME: str(runtime),
    }


def read_owner(labels: Mapping[str, str]) -> OwnerRecord | None:
    """Return the process that created a container; None if its label is missing or invalid."""
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        return OwnerRecord.parse(json.loads(labels[OWNER]))
    return None
