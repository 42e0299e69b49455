"""One-shot tasks in throw-away containers of the session's image."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

from kernelexec.cancellation import await_to_end
from kernelexec.config import Config
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.create_options import Order
from kernelexec.docker.labels import LAUNCHER_INSIDE, ROOT
from kernelexec.errors import EngineFailed, EngineUnavailable
from kernelexec.launcher.protocol import ONE_SHOT_FLAG
from kernelexec.provisioning.container.create import create_container, remove_container
from kernelexec.provisioning.container.mounted_python import python_of
from kernelexec.provisioning.container.mounts import Bind
from kernelexec.provisioning.container.visible_launcher import find_launcher
from kernelexec.provisioning.launch.one_shot_task import TIMED_OUT, OneShotTask, TaskResult, build_result

#: Paths in the container of the task's directory and of a directory of wheels.
_DIRECTORY, _WHEELS = "/opt/kernelexec/task", "/opt/kernelexec/wheels"
_HOME = "/tmp"  # noqa: S108 - the container's own
_OUTPUT_BYTES = 256 * 1024
#: How long after the end of a task the engine may report it, in seconds.
_MORE_SECONDS = 30.0


async def run_in_container(
    task: OneShotTask,
    config: Config,
    environment: Mapping[str, str],
    labels: Mapping[str, str],
    binds: Sequence[Bind],
    cwd: str,
) -> TaskResult:
    """Run a task with these mounts and its own directory, and remove the container in any case.

    Raises:
        EngineFailed, KernelStartFailed: the container could not be created, or the engine does not report its end.
    """
    options, (python, runtime) = config.container, python_of(config.container)
    network = task.network if isinstance(task.network, str) else "bridge" if task.network else "none"
    wheels = [(str(task.wheels), _WHEELS, True)] if task.wheels else []
    launcher = find_launcher(Path(labels[ROOT]))
    task.write_order(workspace=cwd, confinement=None, wheels=_WHEELS if task.wheels else "")
    order = Order(
        image="",
        command=(python, "-I", LAUNCHER_INSIDE, ONE_SHOT_FLAG, _DIRECTORY),
        environment={**environment, "HOME": _HOME},
        user="{}:{}".format(*options.ids),
        cwd="/",
        mounts=(*binds, *runtime, *wheels, (launcher, LAUNCHER_INSIDE, True), (str(task.directory), _DIRECTORY, False)),
        labels=labels,
        options=options.model_copy(update={"network": network, "name": None}),
        limits=config.limits,
    )
    with Engine.acquire() as engine:
        name = f"kernelexec-task-{secrets.token_hex(4)}"
        try:
            container = await await_to_end(anyio.to_thread.run_sync(create_container, engine, order, name))
            await anyio.to_thread.run_sync(engine.start, container)
            code = TIMED_OUT
            with anyio.move_on_after(task.seconds):
                code = await anyio.to_thread.run_sync(_wait, engine, container, task.seconds, abandon_on_cancel=True)
            output = await anyio.to_thread.run_sync(_output, engine, container)
        finally:
            await await_to_end(anyio.to_thread.run_sync(remove_container, engine, name))
    return build_result(task, code, output)


def _wait(engine: Engine, container: str, seconds: float) -> int:
    """Return the container's exit code once it has ended."""
    try:
        with map_docker_errors("wait for a task"):
            return int(engine.api.wait(container, timeout=seconds + _MORE_SECONDS)["StatusCode"])
    except EngineUnavailable:
        with suppress(EngineFailed):
            if engine.inspect_container(container).running:
                return TIMED_OUT
        raise


def _output(engine: Engine, container: str) -> bytes:
    written = bytearray()
    with map_docker_errors("return the output of a task"):
        for chunk in engine.api.logs(container, stream=True, follow=False, tail=2000):
            written += chunk
            del written[:-_OUTPUT_BYTES]
    return bytes(written)
