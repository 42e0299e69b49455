"""The file by which a new owner finds a living kernel; the kernel cannot write to its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.workspace.safe_files import replace_file

HANDOVER_FILE = "kernel.json"
_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Handover:
    """A kernel that waits for a new owner if its own dies."""

    epoch: int
    """The number of the kernel in its session, which is the name of its private directory."""
    token: str
    """The token that its launcher adds to replies."""
    about: Mapping[str, Any]
    """The launcher's report of itself when it became ready."""
    provisioner: Mapping[str, Any]
    """The information by which a provisioner finds its process."""

    def write(self, directory: Path) -> None:
        """Write the file into a session's private directory atomically, readable by this user only.

        Raises:
            OSError: the file cannot be written.
        """
        replace_file(directory / HANDOVER_FILE, json.dumps(asdict(self)).encode(), mode=0o600)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read the file in a session's private directory; None if it is missing or invalid."""
        with suppress(ValueError, RecursionError, TypeError, LookupError):
            content = json.loads(RuntimeDirectory(directory).read_file(HANDOVER_FILE, _BYTES))
            epoch, token, about, provisioner = (content[name] for name in cls.__dataclass_fields__)
            is_valid = isinstance(token, str) and isinstance(about, dict) and isinstance(provisioner, dict)
            if is_valid and isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
                return cls(epoch, token, about, provisioner)
        return None


def remove_handover(directory: Path) -> None:
    """Remove the file, since the kernel is gone."""
    with suppress(OSError):
        (directory / HANDOVER_FILE).unlink()
