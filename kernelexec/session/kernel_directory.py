"""A directory of the workspace in which the kernel writes for one call."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

from kernelexec.cancellation import await_to_end
from kernelexec.session.context import SessionContext
from kernelexec.session.lifecycle import run_in_thread
from kernelexec.workspace.rmtree import CALL_SECONDS, remove_within
from kernelexec.workspace.safe_files import create_beneath


class KernelDirectory:
    """A directory of a new name below the workspace.

    Only this side creates it: what a kernel still writes for a call that was cancelled has no directory. If a cell fills it
    as fast as it is removed, the rest stays in the workspace.
    """

    def __init__(self, context: SessionContext, parent: Path) -> None:
        self._top = context.workspace_path
        self._lock, self._is_over = threading.Lock(), False
        self.name = uuid.uuid4().hex
        self.relative = parent / self.name
        self.path = self._top / self.relative
        self.kernel_path = context.to_kernel_path(self.path)

    async def prepare(self, source: str, _kernel: object) -> str:
        """Create the directory for a kernel that is about to write in it; return the code for that.

        Raises:
            OSError: it cannot be created.
        """
        await await_to_end(run_in_thread(self._create))
        return source

    def _create(self) -> None:
        with self._lock:
            if not self._is_over:
                create_beneath(self._top, self.relative)

    async def remove(self) -> None:
        """Remove the directory for ever, also if this task is cancelled; one that is not there is fine."""
        await await_to_end(run_in_thread(self._remove))

    def _remove(self) -> None:
        with self._lock:
            self._is_over = True
            remove_within(self._top, self.relative, seconds=CALL_SECONDS)
