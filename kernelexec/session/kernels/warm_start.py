"""The start of a kernel: a warm kernel, a new kernel, or a retry after the backend has repaired a missing part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyio.abc import TaskGroup

from kernelexec.errors import KernelStartFailed
from kernelexec.kernel import Kernel
from kernelexec.provisioning import Backend

#: The seconds that a warm kernel may take to answer before a new kernel is started.
_ANSWER_SECONDS = 2.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class WarmKernel:
    """A warm kernel for a session, and the changes of the environment since its start; or notes about its absence."""

    kernel: Kernel | None = None
    environment_changes: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    async def claim(self, cwd: str, backend: Backend) -> Kernel | None:
        """Move the kernel to a directory, and send it the secrets; end it and return None if it does not answer."""
        if self.kernel is None:
            return None
        has_moved = False
        try:
            changes = self.environment_changes
            if backend.secrets is not None:
                changes = {**changes, **await backend.secrets.read()}
                self.kernel.mask(backend.secrets)
            has_moved = await self.kernel.client.enter(cwd, changes, patience=_ANSWER_SECONDS)
        finally:
            if not has_moved:
                await self.kernel.stop(0.0)
        return self.kernel if has_moved else None


NO_WARM_KERNEL = WarmKernel()


async def start_with_retry(
    make_kernel: Callable[[], Kernel], backend: Backend, tasks: TaskGroup, check_open: Callable[[], None]
) -> Kernel:
    """Start a kernel; retry twice if the backend's Python has changed meanwhile, or the failure is transient."""
    await backend.prepare()
    check_open()
    for remaining_tries in reversed(range(_TRIES)):
        python, kernel = backend.python, make_kernel()
        try:
            await kernel.start(tasks)
        except KernelStartFailed as failure:
            check_open()
            if not remaining_tries:
                raise
            await backend.prepare(failure)
            check_open()
            if backend.python == python and not backend.is_transient(str(failure)):
                raise
        else:
            return kernel
    raise AssertionError
