"""Containers of other KernelManagers' kernels whose owner is dead: their kernels ended with it, and nobody removed them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress

from kernelexec.errors import EngineFailed
from kernelexec.provisioning.engine import Engine
from kernelexec.provisioning.labels import CLIENT, OWNER, ROOT
from kernelexec.provisioning.roots import Owner, is_held
from kernelexec.provisioning.trees import DIRECTORY

logger = logging.getLogger("kernelexec")


def remove_leftovers(engine: Engine) -> None:
    """Remove those of dead owners, as far as the engine does it. It blocks: for a thread."""
    with suppress(EngineFailed):
        for container in engine.labelled(CLIENT):
            with suppress(EngineFailed):
                found = engine.see(container)
                if _is_left(found.labels):
                    engine.remove(container)
                    logger.info("kernelexec.swept", extra={"container": found.name})


def _is_left(labels: Mapping[str, str]) -> bool:
    try:
        owner = Owner(**json.loads(labels.get(OWNER, "")))
    except (ValueError, TypeError, RecursionError):
        return False
    try:
        fd = os.open(labels.get(ROOT, ""), DIRECTORY)
    except OSError:  # it is swept already, or cannot be seen from here
        here = Owner.this(locked=False)
        return owner.gone and (owner.boot != here.boot or owner.pid_namespace == here.pid_namespace)
    try:
        return not is_held(fd, owner) and owner.gone
    finally:
        os.close(fd)
