"""The check of this machine. Each check performs a real operation, and a failed check names the fix."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from kernelexec.cli.console import render_table
from kernelexec.cli.options import ONE_COMMAND_SETTINGS, IsolationOptions, option, with_isolation_options
from kernelexec.cli.stdio import OWN_FAILURE, current_directory, print_json, write_text
from kernelexec.config import Config, isolation_variable
from kernelexec.config.container import OURS
from kernelexec.errors import EngineFailed, KernelexecError
from kernelexec.executor.executor import AsyncExecutor
from kernelexec.provisioning import explain_unavailable, new_root
from kernelexec.provisioning import platform as systems
from kernelexec.provisioning.host.bubblewrap_backend import explain_missing
from kernelexec.provisioning.host.interpreters import find_own_import
from kernelexec.session import AsyncSession

doctor_app = typer.Typer()
_FREE_BYTES_MIN = 100 * 1024 * 1024
_FILES_MIN = 1024
_ISOLATED = ("container", "bubblewrap")


@doctor_app.command(epilog=f"Exit status: 0, or 1 if a required check failed; {OWN_FAILURE} after wrong usage.")
@partial(with_isolation_options, names=("isolation", "image", "python"))
def doctor(
    isolation_options: IsolationOptions,
    as_json: Annotated[bool, option("--json", "Print the checks as JSON.")] = False,
) -> int:
    """Check this machine, and print how to fix failed checks."""
    current_directory()
    config = isolation_options.load_config()
    force = config.isolation if config.isolation in _ISOLATED else "local"
    findings = [
        Check("choice", ok=True, detail=f"{config.isolation}, {_describe_choice(isolation_options, config)}"),
        *_machine_checks(),
    ]
    for kind in (force,) if isolation_options.isolation is not None else ("container", "local"):
        checks = _isolation_checks(kind, isolation_options)
        findings += checks if kind == force else [finding.as_optional() for finding in checks]
    if as_json:
        print_json([finding.to_dict() for finding in findings])
    else:
        write_text(sys.stdout, render_table(("", "check", "result", "fix"), [finding.to_row() for finding in findings]))
    return 0 if all(finding.ok for finding in findings if finding.needed) else 1


def _machine_checks() -> list[Check]:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("ipykernel", "jupyter_client", "pyzmq", "nbformat"))
    return [
        Check("python", sys.version_info >= (3, 11), platform.python_version(), "Use Python 3.11 or newer."),
        Check("packages", ok=True, detail=versions),
        _check_runtime_directory(),
        Check(
            "process handles",
            systems.PLATFORM.has_pidfd,
            "pidfd" if systems.PLATFORM.has_pidfd else "none",
            "Linux 5.3 or newer: without them kernel deaths are detected by polling, and descendant processes are not killed.",
        ),
        _check_open_files(),
        Check(
            "bubblewrap",
            (reason := explain_missing(Config())) is None,
            reason or "installed",
            "Install the package bubblewrap.",
        ).as_optional(),
        Check(
            "bash", shutil.which("bash") is not None, str(shutil.which("bash")), "Install bash, or sh is used."
        ).as_optional(),
    ]


def _check_runtime_directory() -> Check:
    try:
        root = new_root()
    except KernelexecError as exc:
        return Check("runtime directory", ok=False, detail=str(exc), remedy="Set TMPDIR to a short, writable path.")
    free = shutil.disk_usage(root).free
    root.rmdir()
    fix = f"Free some space in {root.parent}: output that is too large for a result is stored there."
    return Check("runtime directory", free > _FREE_BYTES_MIN, f"{root.parent}, {free // 2**20} MiB free", fix)


def _check_open_files() -> Check:
    bound = systems.open_files_limit()
    fix = "Raise it with `ulimit -n 4096`: each session takes about ten."
    return Check("open files", bound is None or bound >= _FILES_MIN, "no limit" if bound is None else str(bound), fix)


def _isolation_checks(kind: str, isolation_options: IsolationOptions) -> list[Check]:
    """Check an isolation and its requirements."""
    image = isolation_options.image if kind == "container" else None
    config = replace(isolation_options, isolation=kind, image=image).load_config(**ONE_COMMAND_SETTINGS, quiet=True)
    if kind != "container":
        return [*anyio.run(check_kernel, config), _check_own_code(kind)]
    findings, image = check_engine(config)
    if image is None:
        return findings
    container = config.container.model_copy(update={"image": (image,), "pull": False})
    return [*findings, *anyio.run(check_kernel, config.model_copy(update={"container": container}))]


def _check_own_code(kind: str) -> Check:
    """Check whether cells in the current directory can write the files of this program."""
    path = find_own_import([str(current_directory())])
    detail = "cells here cannot write it" if path is None else f"cells here can write {path}"
    remedy = (
        "Use an environment outside of the directories of cells: files that they leave in it run unconfined at the next start."
    )
    return Check(f"{kind}: kernelexec itself", path is None, detail, remedy).as_optional()


def _describe_choice(isolation_options: IsolationOptions, config: Config) -> str:
    """Return the reason for the chosen isolation."""
    if isolation_options.isolation is not None:
        return "by --isolation"
    if (variable := isolation_variable()) is not None:
        return f"by {variable}"
    if config.isolation == "container":
        return "by default"
    return "this process runs in a container itself"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


_NO_ENGINE = (
    "Install and start Docker; or choose local execution, for code that you trust, by --isolation local or by the environment "
    "variable KERNELEXEC_USE_DOCKER=0."
)
_LIVE_RESTORE = 'Set "live-restore": true in the engine\'s daemon.json: without it a restart of the engine kills all kernels.'
_NO_CONFINEMENT = "Kernels cannot be confined on this operating system: choose containers for untrusted code."
_NO_LANDLOCK = (
    "Linux 5.13 or newer with Landlock on, which /sys/kernel/security/lsm names: without it kernels on this machine read and"
    " write all that this user can."
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check of this machine or of an image, with the fix unless ``ok``."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True
    """Whether kernels need it."""

    def to_dict(self) -> dict[str, object]:
        """Return the check as JSON values."""
        return {"check": self.check, "ok": self.ok, "found": self.detail, "fix": self.remedy}

    def to_row(self) -> list[str]:
        """Return the check as a row of a table."""
        mark = "ok" if self.ok else "FAIL" if self.needed else "no"
        return [mark, self.check, self.detail, "" if self.ok else self.remedy]

    def as_optional(self) -> Check:
        """Return the check as optional for kernels."""
        return replace(self, check=f"optional: {self.check}", needed=False) if self.needed else self


def check_engine(config: Config) -> tuple[list[Check], str | None]:
    """Check the container engine; return the checks, and the available image of ``config``, if any."""
    if (cause := explain_unavailable(config)) is not None:
        return [Check("container engine", ok=False, detail=cause, remedy=_NO_ENGINE)], None
    from kernelexec.docker.client import Engine
    from kernelexec.docker.engine_reports import about
    from kernelexec.docker.images.recipes import how_to_get

    try:
        with Engine.acquire() as engine:
            info = about(engine)
    except EngineFailed as exc:
        return [Check("container engine", ok=False, detail=str(exc), remedy=_NO_ENGINE)], None
    wanted = config.container.image
    image = info.first_of(wanted)
    ours = ", ".join(name.removesuffix(":latest") for name in info.images if name.startswith(OURS)) or "none"
    return [
        Check("container engine", ok=True, detail=f"Docker {info.version} on {info.system}, cgroup v{info.cgroup}"),
        Check("live restore", info.live_restore, "on" if info.live_restore else "off", _LIVE_RESTORE).as_optional(),
        Check(
            "images of kernelexec", ours != "none", ours, "`kernelexec image build agent` builds the default one."
        ).as_optional(),
        Check("container image", image is not None, image or f"{', '.join(wanted)} is missing", how_to_get(wanted[0])),
    ], image


async def check_kernel(config: Config) -> list[Check]:
    """Start a kernel of the configured isolation, and check the operations that agents need."""
    kind = "local" if config.isolation == "container-host" else config.isolation
    with tempfile.TemporaryDirectory(prefix="kx-doctor-") as directory:
        try:
            async with AsyncExecutor(config=config) as executor:
                session = await executor.session("doctor", work_dir=Path(directory))
                last = _check_sockets if kind == "container" else _check_confinement
                checks = (_check_cell, _check_command, _check_interrupt, _check_plots, last)
                return [await check(session, kind) for check in checks]
        except KernelexecError as exc:
            return [Check(f"{kind} kernel", ok=False, detail=str(exc), remedy="See the message.")]


async def _check_cell(session: AsyncSession, kind: str) -> Check:
    result = await session.execute("import sys; print(sys.version.split()[0])")
    version = f"Python {result.text.strip()}, {result.timing.run * 1000:.0f} ms a cell"
    return Check(f"{kind} kernel", result.ok, version, result.text)


async def _check_command(session: AsyncSession, kind: str) -> Check:
    result = await session.execute_command("printf out; printf err >&2; exit 7")
    apart = (result.stdout, result.stderr, result.exit_code) == ("out", "err", 7)
    return Check(f"{kind}: shell commands", apart, f"exit code {result.exit_code}, streams apart", result.text)


async def _check_interrupt(session: AsyncSession, kind: str) -> Check:
    result = await session.execute("import time; time.sleep(60)", timeout=0.2)  # the cell that has to be ended
    delay = f"{result.timing.run - 0.2:.2f} s to control, state {result.state}"
    return Check(f"{kind}: timeouts keep state", result.state == "kept", delay, "Signals do not reach the kernel.")


async def _check_plots(session: AsyncSession, kind: str) -> Check:
    result = await session.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]);")
    fix = f"Install matplotlib in the kernel's {'image' if kind == 'container' else 'environment'} to see plots."
    return Check(f"{kind}: plots", bool(result.images), f"{len(result.images)} picture", fix).as_optional()


async def _check_sockets(session: AsyncSession, kind: str) -> Check:
    """Check whether unix sockets reach the container."""
    file = session.connection_file
    connection = json.loads(file.read_text(encoding="utf-8")) if file is not None else {}
    if connection.get("transport") == "ipc":
        return Check(f"{kind}: unix sockets", ok=True, detail="supported: kernels need no port")
    return Check(
        f"{kind}: unix sockets", ok=False, detail="not supported: kernels are reached over the engine's own stream"
    ).as_optional()


async def _check_confinement(session: AsyncSession, kind: str) -> Check:
    """Check which layers confine a kernel."""
    layers = (await session.execute("None")).confinement
    fix = _NO_LANDLOCK if systems.PLATFORM.confinement else _NO_CONFINEMENT
    return Check(f"{kind}: confinement", "landlock" in layers, ", ".join(layers) or "none", fix).as_optional()
