"""The start of a kernel: the launch of a process, or the takeover of a process whose owner has died."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from kernelexec.errors import KernelConnectionFailed, KernelStartFailed
from kernelexec.kernel.client import KernelClient
from kernelexec.kernel.process import Death, KernelProcess, StartupChildren
from kernelexec.kernel.wire.channels import Connector
from kernelexec.launcher import protocol
from kernelexec.provisioning import Connection, Handover, KernelexecProvisioner, KernelSpec, create_provisioner
from kernelexec.provisioning.launch.kernelspec import KernelReadyTimeout, describe_stderr, explain_start_failure
from kernelexec.provisioning.runtime.unix_sockets import list_checkpoints
from kernelexec.workspace.directory import explain_unusable_workspace

#: Text of the newest cell kept by the launcher for a new owner, in ``stream_bytes``: for stdout and for stderr.
_KEPT_STREAMS = 2
#: The largest readable message, in bytes. Larger messages are counted and dropped on arrival.
_MESSAGE_BYTES = 64 * 1024 * 1024
#: Time limit for the start of a copy of a checkpoint, in seconds: a copy has nothing to import.
_COPY_SECONDS = 10.0
_STOPPED = "The kernel was stopped before it started."

logger = logging.getLogger("kernelexec")
T = TypeVar("T")


class KernelStarter:
    """The start of a kernel's process until the connection is ready; a failure of any step ends the process."""

    def __init__(
        self,
        process: KernelProcess,
        *,
        identity: bytes,
        on_metadata: Callable[[dict[str, Any]], None],
        judges_programs: bool,
    ) -> None:
        self._process = process
        self._identity = identity
        self._on_metadata = on_metadata
        self._judges_programs = judges_programs
        self._connector: Connector | None = None
        self._budget = process.config.budgets.start

    async def start(self, tasks: TaskGroup) -> None:
        """Launch the process, wait for the report of readiness, and connect.

        Raises:
            KernelStartFailed: the process died, or did not serve in time; with the end of stderr.
            InvalidConfig: a secret is not available; nothing was started.
        """
        process, installed = self._process, self._process.installed
        if process.checkpoint is not None:
            self._budget = min(self._budget, _COPY_SECONDS)

        async def begin() -> None:
            # First of all, so that a missing secret starts nothing.
            secrets = await process.secrets.read() if process.secrets is not None else {}
            process.transport = process.backend.transport_for(installed)
            name = installed.name if installed else "kernelexec"
            try:
                connection = process.runtime.create(process.transport, name, user=process.backend.user)
            except OSError as exc:
                message = f"The kernel's private directory {process.runtime.path} cannot be made: {exc}."
                raise KernelStartFailed(message) from exc
            # A kernel without our launcher has no control request for secrets: its environment must have them at its start.
            with process.runtime.secret_pipe(secrets if installed else {}, process.backend.user) as pipe:
                await self._launch(tasks, pipe)
                process.launcher_info = await self._wait_or_death(process.runtime.wait_ready)
            client = await self._connect(connection)
            if secrets and not installed:  # before any cell, over a connection that no other process reads
                cwd = process.backend.cwd if process.checkpoint is None else None  # a copy is where it was
                enter = partial(client.enter, cwd, secrets, patience=self._budget)
                if not await self._wait_or_death(enter):
                    raise KernelConnectionFailed("its launcher did not take the secrets")
            process.usage.start()
            if process.checkpoint is not None:
                await self._read_names(client)
            await self.write_handover()

        await self._within_budget(begin)

    async def take_over(self, tasks: TaskGroup, handover: Handover) -> None:
        """Become the owner of a process whose owner has died; the caller holds the lock of the root of its directory.

        Raises:
            KernelStartFailed: the process is gone, or does not answer in time; the process is ended then.
        """
        process = self._process
        process.token, process.launcher_info = handover.token, dict(handover.about)
        connection = process.runtime.take_over(is_relayed=handover.provisioner.get("relayed") is True)

        async def begin() -> None:
            if process.secrets is not None:
                await process.secrets.read()
            await self._attach(tasks, handover)
            if connection is None:
                raise KernelConnectionFailed("no process reads the pipe of its owner")
            client = await self._connect(connection)
            process.usage.start()
            await self._wait_or_death(lambda: self._read_names(client))

        await self._within_budget(begin)

    async def write_handover(self) -> None:
        """Write the file by which a new owner finds the process, if the process waits for a new owner."""
        process = self._process
        if not process.adoption_seconds or process.provisioner is None:
            return
        runtime, info = process.runtime, await process.provisioner.get_provisioner_info()
        handover = Handover(runtime.epoch, process.token, process.launcher_info, info)
        try:
            handover.write(runtime.session)
        except (OSError, TypeError, ValueError):
            logger.exception("kernelexec.kernel_not_noted", extra={"kernel": str(runtime.path)})

    async def _within_budget(self, begin: Callable[[], Awaitable[None]]) -> None:
        process = self._process
        try:
            with anyio.fail_after(self._budget):
                await begin()
        except TimeoutError as exc:
            last = f" ({self._connector.failure})" if self._connector and self._connector.failure else ""
            failure = KernelReadyTimeout if process.has_ready_pipe and not process.has_client else KernelStartFailed
            raise failure(await self._give_up(f"{process.label} did not serve within {self._budget} s{last}.")) from exc
        except KernelConnectionFailed as exc:
            raise KernelStartFailed(await self._give_up(f"{process.label}'s sockets cannot be used: {exc}.")) from exc
        except OSError as exc:
            raise KernelStartFailed(await self._give_up(f"{process.label} cannot be started: {exc}.")) from exc
        except KernelStartFailed:
            await self._process.give_up()
            raise
        except BaseException:  # cancellation, or a secret that is missing: nothing is kept for another try
            await self._process.stop(0.0)
            raise

    async def _give_up(self, reason: str) -> str:
        message = reason + await self._describe_stderr()
        await self._process.give_up()
        return message

    async def _launch(self, tasks: TaskGroup, secrets: str | None) -> None:
        self._check_wanted()
        process = self._process
        workspace, user = Path(process.backend.to_host_path(process.backend.cwd)), process.backend.user
        if (problem := explain_unusable_workspace(workspace, None if user is None else user[0])) is not None:
            raise KernelStartFailed(problem)
        spec = process.backend.build_spec(process.runtime, process.token, process.installed)
        bootstrap = process.backend.bootstrap()
        env = bootstrap.environ | self._launch_options(secrets, bootstrap.deferred)
        provisioner = await self._provisioner_for(spec)
        self._check_wanted()
        kwargs = await provisioner.pre_launch(env=env, cwd=bootstrap.cwd)
        with process.runtime.create_stderr() as stderr:
            try:
                process.provisioner = provisioner  # before the launch, so that a stop meanwhile can end the process
                kwargs |= {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": stderr}
                await provisioner.launch_kernel(kwargs.pop("cmd"), **kwargs)
            except OSError as exc:
                if not provisioner.has_process:
                    process.set_death(Death("exited", 127))
                raise KernelStartFailed(explain_start_failure(exc, spec.argv[0], process.backend.cwd)) from exc
        await provisioner.post_launch()
        process.container = provisioner.container_info
        tasks.start_soon(process.record_exit, provisioner)

    # Before the launch `KernelProcess.stop` finds no process to end, so the start itself must look whether it was stopped.
    def _check_wanted(self) -> None:
        if self._process.is_stopping:
            raise KernelStartFailed(_STOPPED)

    async def _provisioner_for(self, spec: KernelSpec) -> KernelexecProvisioner:
        """Return the previous kernel's provisioner if its container can run this kernel, else a new provisioner."""
        host = self._process.take_host()
        if host is not None:
            host.provisioner.checkpoint, host.provisioner.spared = self._process.checkpoint, ()
        elif self._process.checkpoint is not None:
            raise KernelStartFailed("What has kept the checkpoint is gone.")
        if host is not None and (self._process.checkpoint is not None or host.provisioner.can_reuse(spec)):
            self._process.provisioner = host.provisioner
            return host.provisioner
        if host is not None:
            await host.provisioner.cleanup()
        return create_provisioner(self._process.token, spec)

    def _launch_options(self, secrets: str | None, later: Mapping[str, object]) -> dict[str, str]:
        """Return the environment variable with the launcher's options."""
        process, config, patience = self._process, self._process.config, self._process.adoption_seconds
        return process.runtime.launch_environment(
            process.token,
            config.limits.list_set(),
            patience=patience,
            tape_bytes=_KEPT_STREAMS * config.output.stream_bytes if patience else 0,
            confinement=process.backend.confinement(process.runtime),
            audits_programs=self._judges_programs,
            programs=config.programs.launcher_options | {"keeps_path": process.backend.keeps_path},
            secrets=secrets,
            checkpoints=self._checkpoint_options(),
            connection_file=None if process.checkpoint is None else str(process.runtime.connection_file),
            reseed=process.reseeds,
            **later,
        )

    def _checkpoint_options(self) -> dict[str, Any] | None:
        process = self._process
        if not process.makes_checkpoints:
            return None
        process.newest_before = max(list_checkpoints(process.runtime.path), default=0)
        return {
            "directory": str(process.runtime.path),
            "limit": process.checkpoints_max,
            "mode": process.config.checkpoints,
            "after": process.newest_before,
            "requested": [checkpoint.number for checkpoint in process.earlier_checkpoints if not checkpoint.is_automatic],
            "processes": {checkpoint.number: checkpoint.own_pid for checkpoint in process.earlier_checkpoints},
            "memory_bytes": process.checkpoints_bytes,
        }

    async def _attach(self, tasks: TaskGroup, handover: Handover) -> None:
        """Have a new provisioner manage a process started by another provisioner."""
        process = self._process
        provisioner = create_provisioner(process.token, process.backend.build_spec(process.runtime, process.token, None))
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(provisioner.cleanup)
            try:
                await provisioner.load_provisioner_info(dict(handover.provisioner))
            except (OSError, LookupError, ValueError, TypeError) as exc:
                raise KernelStartFailed(f"The kernel that waited for a new owner cannot be found: {exc!r}.") from exc
            if not provisioner.has_process:
                raise KernelStartFailed("The kernel that waited for a new owner has ended.")
            cleanup.pop_all()
        process.provisioner = provisioner
        process.container = provisioner.container_info
        tasks.start_soon(process.record_exit, provisioner)

    async def _connect(self, connection: Connection) -> KernelClient:
        process, provisioner = self._process, self._process.provisioner
        if provisioner is None:  # it was killed meanwhile
            raise KernelStartFailed(_STOPPED)
        accepts = partial(provisioner.accepts_peer, guarded=not process.has_ready_pipe)
        connector = Connector(connection, provisioner.pid, is_serving=process.has_ready_pipe, accepts=accepts)
        self._connector = connector
        client = KernelClient(connection.key, self._identity, _MESSAGE_BYTES, self._on_metadata)
        process.client = client
        if process.secrets is not None:
            client.mask(process.secrets)
        await self._wait_or_death(lambda: client.connect(connector))
        if not process.has_ready_pipe:
            is_responsive = partial(client.is_responsive, self._budget)
            if not await self._wait_or_death(is_responsive):  # sockets and a welcome can precede the kernel
                raise KernelConnectionFailed("it does not answer")
        if process.installed is not None:
            process.startup_children = await StartupChildren.of(provisioner.guard_pid)
        return client

    async def _read_names(self, client: KernelClient) -> None:
        """Check the launcher's token, and read the names of the user's variables.

        Raises:
            KernelConnectionFailed: no answer carries the token of this process.
        """
        reply = await client.request("control", protocol.RESUME_REQUEST, {"msg_id": None}, patience=self._budget)
        info = (reply or {}).get(protocol.METADATA_KEY)
        if not isinstance(info, dict) or info.get("token") != self._process.token:
            raise KernelConnectionFailed("its launcher does not answer")
        self._process.variable_names.load(info)
        self._on_metadata({protocol.METADATA_KEY: {"token": self._process.token, "next_cell": info.get("next_cell")}})

    async def _wait_or_death(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a wait. The death of the process ends the wait: a dead kernel never answers.

        Raises:
            KernelStartFailed: the process has ended.
            KernelConnectionFailed: from the wait itself.
        """
        process, outcome = self._process, list[T | KernelConnectionFailed]()
        async with anyio.create_task_group() as race:

            async def cancel_at_death() -> None:
                await process.died.wait()
                race.cancel_scope.cancel()

            race.start_soon(cancel_at_death)
            try:
                outcome.append(await wait())
            except KernelConnectionFailed as exc:  # raised below, outside of the task group, which would wrap it in a group
                outcome.append(exc)
            race.cancel_scope.cancel()
        # A failed connection is often the consequence of a death, which is the better report.
        if process.death is not None:
            how = f"{process.death.cause}, exit code {process.death.exit_code}"
            raise KernelStartFailed(f"{process.label} ended while it started ({how}).{await self._describe_stderr()}")
        [result] = outcome
        if isinstance(result, KernelConnectionFailed):
            raise result
        return result

    async def _describe_stderr(self) -> str:
        process = self._process
        return describe_stderr((await process.read_stderr()).strip(), None if process.installed else process.backend.python)
