"""New kernels in the places of living ones."""

from __future__ import annotations

from kernelexec.session.context import SessionContext
from kernelexec.session.features.packages.installer import PackageInstaller


class KernelRestarts:
    """The restarts of one session's kernels."""

    def __init__(self, context: SessionContext, packages: PackageInstaller) -> None:
        self._context = context
        self._packages = packages

    async def restart(self, *, language: str | None = None, fresh_venv: bool = False) -> None:
        """Replace all kernels, or the kernel of one language; their state and a running cell are lost.

        Waiting cells run in the new kernels. ``fresh_venv`` also removes the packages of the session's virtual environment.

        Raises:
            InvalidRequest: the session has no kernel of that language.
            KernelStartFailed: a kernel did not start.
        """
        context, queue = self._context, self._context.queue
        context.scope.check_open()
        supervisors = context.kernels.select_supervisors(language)
        if fresh_venv:
            await self._packages.replace_venv()
        first_run = queue.first
        first_supervisor = context.kernels.get_supervisor(first_run.cell) if first_run is not None else None
        is_sent = first_run is not None and (first_run.execution is not None or first_run.in_flight)
        for supervisor in supervisors:
            if is_sent and supervisor is first_supervisor:
                await supervisor.kill("request")
            else:
                supervisor.is_restart_pending = True
        if first_run is not None and first_supervisor in supervisors and first_run.collector is not None:
            await first_run.done.wait()
        if queue.first is None:
            async with context.scope.hold_open(), queue.run_lock:
                for supervisor in supervisors:
                    if supervisor.epoch:
                        await supervisor.acquire()
