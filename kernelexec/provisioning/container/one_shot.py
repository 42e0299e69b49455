"""An errand in a throw-away container of the session's image."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio
import anyio.to_thread

from kernelexec.config import Config
from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.create_options import Order
from kernelexec.docker.labels import LAUNCHER_INSIDE, RUNTIME_INSIDE
from kernelexec.errors import EngineFailed, EngineUnavailable
from kernelexec.launcher.protocol import ONE_SHOT_FLAG
from kernelexec.provisioning.container.create import make, remove_now
from kernelexec.provisioning.container.mounted_python import PYTHON as STAND_IN
from kernelexec.provisioning.container.mounted_python import stand_in
from kernelexec.provisioning.container.mounts import Bind
from kernelexec.provisioning.launch.kernelspec import LAUNCHER
from kernelexec.provisioning.launch.one_shot import TIMED_OUT, Done, Errand, done

#: The mounts of the errand's directory and of a directory of wheels.
_DIRECTORY, _WHEELS = "/opt/kernelexec/errand", "/opt/kernelexec/wheels"
_HOME = "/tmp"  # noqa: S108 - the container's own
_OUTPUT_BYTES = 256 * 1024
#: How long after the errand the engine may report its end, in seconds.
_MORE_SECONDS = 30.0


async def run_in_container(
    errand: Errand, config: Config, environment: Mapping[str, str], labels: Mapping[str, str], binds: Sequence[Bind], cwd: str
) -> Done:
    """Run it; the container is gone afterwards, whatever became of it. It sees what is bound, and what is the errand's own.

    Raises:
        EngineFailed, KernelStartFailed: it could not be made, or nobody says what became of it.
    """
    options, mounted = config.container, stand_in(config.container)
    network = errand.network if isinstance(errand.network, str) else "bridge" if errand.network else "none"
    wheels = [(str(errand.wheels), _WHEELS, True)] if errand.wheels else []
    runtime = [(mounted.volume, RUNTIME_INSIDE, True)] if mounted else []
    errand.write(workspace=cwd, confinement=None, wheels=_WHEELS if errand.wheels else "")
    order = Order(
        image="",
        command=(STAND_IN if mounted else options.python, "-I", LAUNCHER_INSIDE, ONE_SHOT_FLAG, _DIRECTORY),
        environment={**environment, "HOME": _HOME},
        user="{}:{}".format(*options.ids),
        cwd="/",
        mounts=(*binds, *runtime, *wheels, (str(LAUNCHER), LAUNCHER_INSIDE, True), (str(errand.directory), _DIRECTORY, False)),
        labels=labels,
        options=options.model_copy(update={"network": network, "name": None}),
        limits=config.limits,
    )
    with Engine.acquire() as engine:
        container = await anyio.to_thread.run_sync(make, engine, order, f"kernelexec-errand-{secrets.token_hex(4)}")
        try:
            await anyio.to_thread.run_sync(engine.start, container)
            code = TIMED_OUT
            with anyio.move_on_after(errand.seconds):
                code = await anyio.to_thread.run_sync(_wait, engine, container, errand.seconds, abandon_on_cancel=True)
            said = await anyio.to_thread.run_sync(_output, engine, container)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_now, container)
    return done(errand, code, said)


def _wait(engine: Engine, container: str, seconds: float) -> int:
    """Return its exit code once it has ended."""
    try:
        with map_docker_errors("wait for an errand"):
            return int(engine.api.wait(container, timeout=seconds + _MORE_SECONDS)["StatusCode"])
    except EngineUnavailable:
        with suppress(EngineFailed):
            if engine.inspect_container(container).running:
                return TIMED_OUT
        raise


def _output(engine: Engine, container: str) -> bytes:
    written = bytearray()
    with map_docker_errors("give the output of an errand"):
        for chunk in engine.api.logs(container, stream=True, follow=False, tail=2000):
            written += chunk
            del written[:-_OUTPUT_BYTES]
    return bytes(written)
