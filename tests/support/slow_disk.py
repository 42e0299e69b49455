"""A disk that hangs or fails on demand, for what writes notebooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from kernelexec.records.notebook import recorder
from kernelexec.workspace.safe_files import replace_file
from tests.support.pace import BOUND


class Disk:
    """Stands for the disk: writes wait until it is let go, take so many seconds, or fail; how many began is counted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.free.set()
        self.failure: OSError | None = None
        self.writes = 0
        self.seconds = 0.0
        self.begun = threading.Event()
        patch.setattr(recorder, "replace_file", self.write)

    def write(self, path: Path, content: Iterable[bytes]) -> None:
        self.writes += 1
        self.begun.set()
        assert self.free.wait(BOUND)
        time.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        replace_file(path, content)

    def hang(self) -> None:
        self.free.clear()
        self.begun.clear()
