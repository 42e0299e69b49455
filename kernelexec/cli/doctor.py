"""The doctor's checks of this machine: each does the real thing, and a failed one names the remedy."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from kernelexec.cli.options import BRIEF, IsolationOptions
from kernelexec.cli.stdio import here, write_any, writing
from kernelexec.config import Config, isolation_variable
from kernelexec.config.images import OURS, REFERENCE
from kernelexec.errors import EngineFailed, KernelexecError
from kernelexec.executor import AsyncExecutor
from kernelexec.provisioning import new_root, unavailable
from kernelexec.provisioning import platform as systems
from kernelexec.provisioning.host.bubblewrap_backend import missing
from kernelexec.session import AsyncSession

_ROOM_BYTES = 100 * 1024 * 1024
_FILES_MIN = 1024
_APART = ("container", "bubblewrap")


def examine(*, isolation: str | None, image: str | None, python: str | None, as_json: bool) -> int:
    """Run all checks, or those of one kind of kernel, and print them; exit status 0 if kernels of the kind in force work."""
    here()
    isolation_options = IsolationOptions(isolation=isolation, image=image, python=python)
    config = isolation_options.config()
    force = config.isolation if config.isolation in _APART else "local"
    findings = [Finding("choice", ok=True, found=f"{config.isolation}, {_why(isolation_options, config)}"), *_machine()]
    for kind in (force,) if isolation is not None else ("container", "local"):
        checks = _kernels(kind, isolation_options, quiet=True)
        findings += checks if kind == force else [finding.made_optional() for finding in checks]
    write_any(sys.stdout, json.dumps([asdict(finding) for finding in findings]) + "\n" if as_json else _table(findings))
    return 0 if all(finding.ok for finding in findings if not finding.optional) else 1


def _machine() -> list[Finding]:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("ipykernel", "jupyter_client", "pyzmq", "nbformat"))
    return [
        Finding("python", sys.version_info >= (3, 11), platform.python_version(), "Use Python 3.11 or newer."),
        Finding("packages", ok=True, found=versions),
        _runtime_directory(),
        Finding(
            "process handles",
            systems.HERE.process_handles,
            "pidfd" if systems.HERE.process_handles else "none",
            "Linux 5.3 or newer: without them a kernel's death is found by polling and descendants are not swept.",
        ),
        _open_files(),
        Finding(
            "optional: bubblewrap",
            (reason := missing(Config())) is None,
            reason or "installed",
            "Install the package bubblewrap.",
        ),
        Finding("optional: bash", shutil.which("bash") is not None, str(shutil.which("bash")), "Install bash, or sh is used."),
    ]


def _runtime_directory() -> Finding:
    try:
        root = new_root()
    except KernelexecError as exc:
        return Finding("runtime directory", ok=False, found=str(exc), mend="Set TMPDIR to a short, writable path.")
    free = shutil.disk_usage(root).free
    root.rmdir()
    mend = f"Free some space in {root.parent}: output that is too large for a result is kept there."
    return Finding("runtime directory", free > _ROOM_BYTES, f"{root.parent}, {free // 2**20} MiB free", mend)


def _open_files() -> Finding:
    bound = systems.open_files()
    mend = "Raise it with `ulimit -n 4096`: each session takes about ten."
    return Finding("open files", bound is None or bound >= _FILES_MIN, "no bound" if bound is None else str(bound), mend)


def _kernels(kind: str, isolation_options: IsolationOptions, *, quiet: bool) -> list[Finding]:
    """Return the findings about one kind of kernel and its requirements."""
    config = replace(isolation_options, isolation=kind, image=isolation_options.image if kind == "container" else None).config(
        **BRIEF, quiet=quiet
    )
    if kind != "container":
        return anyio.run(kernel_checks, config)
    findings, image = engine_checks(config)
    if image is None:
        return findings
    container = config.container.model_copy(update={"image": (image,), "pull": False})
    return [*findings, *anyio.run(kernel_checks, config.model_copy(update={"container": container}))]


def _why(isolation_options: IsolationOptions, config: Config) -> str:
    """Return what decided where code runs."""
    if isolation_options.isolation is not None:
        return "by --isolation"
    if (variable := isolation_variable()) is not None:
        return f"by {variable}"
    if config.isolation == "container":
        return "nothing else was chosen"
    return "this process is in a container itself"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _table(findings: list[Finding]) -> str:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "to mend it"):
        table.add_column(heading)
    for finding in findings:
        mark = "ok" if finding.ok else "no" if finding.optional else "FAIL"
        table.add_row(mark, finding.check, finding.found, "" if finding.ok else finding.mend)
    console = Console()
    with writing(sys.stdout), console.capture() as captured:
        console.print(table)
    return captured.get()


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
        """Return whether kernels work without it."""
        return self.check.startswith("optional: ")

    def made_optional(self) -> Finding:
        """Return the finding as an optional one."""
        return self if self.optional else replace(self, check=f"optional: {self.check}")


def engine_checks(config: Config) -> tuple[list[Finding], str | None]:
    """Check the container engine; return the findings, and the image of ``config`` that is there, if any."""
    if (cause := unavailable(config)) is not None:
        return [Finding("container engine", ok=False, found=cause, mend=_NO_ENGINE)], None
    from kernelexec.docker.client import Engine
    from kernelexec.docker.info import about

    try:
        with Engine.shared() as engine:
            info = about(engine)
    except EngineFailed as exc:
        return [Finding("container engine", ok=False, found=str(exc), mend=_NO_ENGINE)], None
    wanted = config.container.image
    image = info.first_of(wanted)
    ours = ", ".join(name.removesuffix(":latest") for name in info.images if name.startswith(OURS)) or "none"
    return [
        Finding("container engine", ok=True, found=f"Docker {info.version} on {info.system}, cgroup v{info.cgroup}"),
        Finding("optional: live restore", info.live_restore, "on" if info.live_restore else "off", _LIVE_RESTORE),
        Finding(
            "optional: images of kernelexec", ours != "none", ours, "`kernelexec image build agent` makes the default one."
        ),
        Finding("container image", image is not None, image or f"{', '.join(wanted)} is not here", _how_to_get(wanted[0])),
    ], image


async def kernel_checks(config: Config) -> list[Finding]:
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
    version = f"Python {result.text.strip()}, {result.timing.run * 1000:.0f} ms a cell"
    return Finding(f"{kind} kernel", result.ok, version, result.text)


async def _command(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute_command("printf out; printf err >&2; exit 7")
    apart = (result.stdout, result.stderr, result.exit_code) == ("out", "err", 7)
    return Finding(f"{kind}: shell commands", apart, f"exit code {result.exit_code}, streams apart", result.text)


async def _interrupt(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute("import time; time.sleep(60)", timeout=0.2)
    delay = f"{result.timing.run - 0.2:.2f} s to control, state {result.state}"
    return Finding(f"{kind}: timeouts keep state", result.state == "kept", delay, "Signals do not reach the kernel.")


async def _plots(session: AsyncSession, kind: str) -> Finding:
    result = await session.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]);")
    mend = f"Install matplotlib in the kernel's {'image' if kind == 'container' else 'environment'} to see plots."
    return Finding(f"optional: {kind}: plots", bool(result.images), f"{len(result.images)} picture", mend)


async def _sockets(session: AsyncSession, kind: str) -> Finding:
    """Check whether unix sockets reach the container."""
    file = session.connection_file
    connection = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
    if connection.get("transport") == "ipc":
        return Finding(f"{kind}: unix sockets", ok=True, found="they cross: kernels need no port")
    return Finding(f"optional: {kind}: unix sockets", ok=False, found="they do not cross: kernels listen on 127.0.0.1")


async def _confinement(session: AsyncSession, kind: str) -> Finding:
    """Check which layers confine a kernel."""
    layers = (await session.execute("None")).confinement
    mend = _NO_LANDLOCK if systems.HERE.confinement else _NO_CONFINEMENT
    return Finding(f"optional: {kind}: confinement", "landlock" in layers, ", ".join(layers) or "none", mend)


_KERNEL_CHECKS: tuple[Callable[[AsyncSession, str], Awaitable[Finding]], ...] = (_cell, _command, _interrupt, _plots)


def _how_to_get(image: str) -> str:
    if (reference := REFERENCE.fullmatch(image)) is not None:
        return f"`kernelexec image build {reference['name']}{' --sudo' if reference['sudo'] else ''}` makes it."
    return "Build or pull it, or name another one by --image."
