"""Checks of a kind of kernel, each by doing the real thing, and of the container engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kernelexec.config import Config
from kernelexec.config.images import OURS, REFERENCE
from kernelexec.errors import EngineFailed, KernelexecError
from kernelexec.executor import AsyncExecutor
from kernelexec.provisioning import platform, unavailable
from kernelexec.session import AsyncSession

_NO_ENGINE = (
    "Install and start Docker; or choose local execution, for code that you trust, by --isolation local or by the environment "
    "variable KERNELEXEC_USE_DOCKER=0."
)
_LIVE_RESTORE = 'Set "live-restore": true in the engine\'s daemon.json: without it a restart of the engine ends all kernels.'
_NO_CONFINEMENT = "Nothing confines kernels on a machine of this system: choose containers for code that you do not trust."
_NO_LANDLOCK = (
    "Linux 5.13 or newer with Landlock on, which /sys/kernel/security/lsm names: without it kernels on this machine read and"
    " write all that this user can."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and how to mend it where it is not ``ok``."""

    check: str
    ok: bool
    found: str
    mend: str = ""

    @property
    def optional(self) -> bool:
        """Whether kernels work without it."""
        return self.check.startswith("optional: ")

    def made_optional(self) -> Finding:
        """The same, of what need not work."""
        return self if self.optional else replace(self, check=f"optional: {self.check}")


def engine_findings(config: Config) -> tuple[list[Finding], str | None]:
    """What is to be said of the container engine, and the image of ``config`` that is there, if one is."""
    if (cause := unavailable(config)) is not None:
        return [Finding("container engine", ok=False, found=cause, mend=_NO_ENGINE)], None
    from kernelexec.docker.client import Engine  # noqa: PLC0415 - it is there, as was just found
    from kernelexec.docker.info import about  # noqa: PLC0415

    try:
        with Engine.shared() as engine:
            said = about(engine)
    except EngineFailed as exc:
        return [Finding("container engine", ok=False, found=str(exc), mend=_NO_ENGINE)], None
    wanted = config.container.image
    image = said.first_of(wanted)
    ours = ", ".join(name.removesuffix(":latest") for name in said.images if name.startswith(OURS)) or "none"
    return [
        Finding("container engine", ok=True, found=f"Docker {said.version} on {said.system}, cgroup v{said.cgroup}"),
        Finding("optional: live restore", said.live_restore, "on" if said.live_restore else "off", _LIVE_RESTORE),
        Finding(
            "optional: images of kernelexec", ours != "none", ours, "`kernelexec image build agent` makes the default one."
        ),
        Finding("container image", image is not None, image or f"{', '.join(wanted)} is not here", _how_to_get(wanted[0])),
    ], image


async def kernel_findings(config: Config) -> list[Finding]:
    """Start a kernel of that kind and try what agents need."""
    kind = "local" if config.isolation == "container-host" else config.isolation
    with tempfile.TemporaryDirectory(prefix="kx-doctor-") as directory:
        try:
            async with AsyncExecutor(config=config) as executor:
                session = await executor.session("doctor", work_dir=Path(directory))
                checks = (*_KERNEL_CHECKS, _sockets if kind == "container" else _confinement)
                return [await check(session, kind) for check in checks]
        except KernelexecError as exc:
            return [Finding(f"{kind} kernel", ok=False, found=str(exc), mend="See the message.")]


async def _cell(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute("import sys; print(sys.version.split()[0])")
    found = f"Python {result.text.strip()}, {result.timing.run * 1000:.0f} ms a cell"
    return Finding(f"{kind} kernel", result.ok, found, result.text)


async def _command(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute_command("printf out; printf err >&2; exit 7")
    apart = (result.stdout, result.stderr, result.exit_code) == ("out", "err", 7)
    return Finding(f"{kind}: shell commands", apart, f"exit code {result.exit_code}, streams apart", result.text)


async def _interrupt(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute("import time; time.sleep(60)", timeout=0.2)
    found = f"{result.timing.run - 0.2:.2f} s to control, state {result.state}"
    return Finding(f"{kind}: timeouts keep state", result.state == "kept", found, "Signals do not reach the kernel.")


async def _plots(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]);")
    mend = f"Install matplotlib in the kernel's {'image' if kind == 'container' else 'environment'} to see plots."
    return Finding(f"optional: {kind}: plots", bool(result.images), f"{len(result.images)} picture", mend)


async def _sockets(session: AsyncSession, kind: str) -> Finding:
    """How the kernel that answers is reached."""
    file = session.connection_file
    said = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
    if said.get("transport") == "ipc":
        return Finding(f"{kind}: unix sockets", ok=True, found="they cross: kernels need no port")
    return Finding(f"optional: {kind}: unix sockets", ok=False, found="they do not cross: kernels listen on 127.0.0.1")


async def _confinement(session: AsyncSession, kind: str) -> Finding:
    """What holds a kernel within its workspace, beside this user's rights."""
    layers = (await session.execute("None")).confinement
    mend = _NO_LANDLOCK if platform.HERE.confinement else _NO_CONFINEMENT
    return Finding(f"optional: {kind}: confinement", "landlock" in layers, ", ".join(layers) or "none", mend)


_KERNEL_CHECKS: tuple[Callable[[AsyncSession, str], Awaitable[Finding]], ...] = (_cell, _command, _interrupt, _plots)


def _how_to_get(image: str) -> str:
    if (found := REFERENCE.fullmatch(image)) is not None:
        return f"`kernelexec image build {found['name']}{' --sudo' if found['sudo'] else ''}` makes it."
    return "Build or pull it, or name another one by --image."
