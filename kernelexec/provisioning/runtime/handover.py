"""What the next owner of a kernel needs to know of it, in a file beside the directory that the kernel can write in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from kernelexec.workspace.safe_files import replace_file

NAME = "kernel.json"
_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Handover:
    """A kernel that waits for a new owner if its own dies."""

    epoch: int
    """Which one of its session's kernels it is: the name of its private directory."""
    token: str
    """What its launcher puts beside replies."""
    about: Mapping[str, Any]
    """What it said when it began to serve."""
    provisioner: Mapping[str, Any]
    """What its provisioner says of it, and finds it by."""

    def write(self, directory: Path) -> None:
        """Replace the file in a session's private directory; only this user can read it.

        Raises:
            OSError: the file cannot be written.
        """
        replace_file(directory / NAME, json.dumps(asdict(self)).encode(), mode=0o600)

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """What stands in a session's private directory; None if there is nothing, or nothing of use."""
        with suppress(ValueError, RecursionError, TypeError, LookupError):
            said = json.loads(RuntimeDirectory(directory).read(NAME, _BYTES))
            epoch, token, about, provisioner = (said[name] for name in cls.__dataclass_fields__)
            fits = isinstance(token, str) and isinstance(about, dict) and isinstance(provisioner, dict)
            if fits and isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
                return cls(epoch, token, about, provisioner)
        return None


def forget(directory: Path) -> None:
    """Remove what stands there: the kernel is gone."""
    with suppress(OSError):
        (directory / NAME).unlink()
