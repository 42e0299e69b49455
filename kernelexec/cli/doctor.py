"""What works on this machine: every check does the real thing, and a failed one says how to mend it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sys
from dataclasses import asdict, replace

import anyio
from rich.console import Console
from rich.table import Table

from kernelexec.cli.findings import Finding, engine_findings, kernel_findings
from kernelexec.cli.options import BRIEF, Place
from kernelexec.cli.surroundings import here, write_any, writing
from kernelexec.config import Config, isolation_variable
from kernelexec.errors import KernelexecError
from kernelexec.provisioning import new_root
from kernelexec.provisioning import platform as systems
from kernelexec.provisioning.host.bubblewrap_backend import missing

_ROOM_BYTES = 100 * 1024 * 1024
_FILES_MIN = 1024
_APART = ("container", "bubblewrap")


def examine(*, isolation: str | None, image: str | None, python: str | None, as_json: bool) -> int:
    """Run all checks, or those of one kind of kernel, and print them; exit status 0 if kernels of the kind in force work."""
    here()
    place = Place(isolation=isolation, image=image, python=python)
    config = place.config()
    force = config.isolation if config.isolation in _APART else "local"
    findings = [Finding("choice", ok=True, found=f"{config.isolation}, {_why(place, config)}"), *_machine()]
    for kind in (force,) if isolation is not None else ("container", "local"):
        found = _kernels(kind, place, quiet=True)
        findings += found if kind == force else [finding.made_optional() for finding in found]
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
            "optional: bubblewrap", (why := missing(Config())) is None, why or "installed", "Install the package bubblewrap."
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


def _kernels(kind: str, place: Place, *, quiet: bool) -> list[Finding]:
    """The findings about one kind of kernel, and about what it needs."""
    config = replace(place, isolation=kind, image=place.image if kind == "container" else None).config(**BRIEF, quiet=quiet)
    if kind != "container":
        return anyio.run(kernel_findings, config)
    found, image = engine_findings(config)
    if image is None:
        return found
    container = config.container.model_copy(update={"image": (image,), "pull": False})
    return [*found, *anyio.run(kernel_findings, config.model_copy(update={"container": container}))]


def _why(place: Place, config: Config) -> str:
    """What decided where code runs."""
    if place.isolation is not None:
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
