"""What works on this machine: every check does the real thing, and a failed one says how to mend it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from kernelexec.cli.surroundings import here, write_any, writing
from kernelexec.config import load
from kernelexec.errors import KernelexecError
from kernelexec.executor import AsyncExecutor
from kernelexec.provisioning import new_root
from kernelexec.session import AsyncSession

_ROOM_BYTES = 100 * 1024 * 1024
_FILES_MIN = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found, and how to mend it where it is not ``ok``."""

    check: str
    ok: bool
    found: str
    mend: str = ""


def examine(*, python: str | None, as_json: bool) -> int:
    """Run all checks and print them; exit status 0 if local kernels work."""
    here()
    findings = [*_machine(), *anyio.run(_kernel, python)]
    write_any(sys.stdout, json.dumps([asdict(finding) for finding in findings]) + "\n" if as_json else _table(findings))
    return 0 if all(finding.ok for finding in findings if not finding.check.startswith("optional")) else 1


def _machine() -> list[Finding]:
    versions = ", ".join(f"{name} {_version(name)}" for name in ("ipykernel", "jupyter_client", "pyzmq", "nbformat"))
    return [
        Finding("python", sys.version_info >= (3, 11), platform.python_version(), "Use Python 3.11 or newer."),
        Finding("packages", ok=True, found=versions),
        _runtime_directory(),
        Finding(
            "process handles",
            hasattr(os, "pidfd_open"),
            "pidfd" if hasattr(os, "pidfd_open") else "none",
            "Linux 5.3 or newer: without them a kernel's death is found by polling and descendants are not swept.",
        ),
        _open_files(),
        Finding("optional: bash", shutil.which("bash") is not None, str(shutil.which("bash")), "Install bash, or sh is used."),
        Finding("optional: containers", ok=False, found="not in this version", mend="Use isolation=local for code you trust."),
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
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    mend = "Raise it with `ulimit -n 4096`: each session takes about ten."
    return Finding("open files", soft >= _FILES_MIN, str(soft), mend)


async def _kernel(python: str | None) -> list[Finding]:
    options = {"notebook": False, "journal": False, "save_displays": False} | ({"python": python} if python else {})
    with tempfile.TemporaryDirectory(prefix="kx-doctor-") as directory:
        try:
            async with AsyncExecutor("local", config=load("local", config=options)) as executor:
                session = await executor.session("doctor", work_dir=Path(directory))
                return [await check(session) for check in _KERNEL_CHECKS]
        except KernelexecError as exc:
            return [Finding("local kernel", ok=False, found=str(exc), mend="See the message.")]


async def _cell(session: AsyncSession) -> Finding:
    result = await session.execute("import sys; print(sys.version.split()[0])")
    found = f"Python {result.text.strip()}, {result.timing.run * 1000:.0f} ms a cell"
    return Finding("local kernel", result.ok, found, result.text)


async def _command(session: AsyncSession) -> Finding:
    result = await session.execute_command("printf out; printf err >&2; exit 7")
    apart = (result.stdout, result.stderr, result.exit_code) == ("out", "err", 7)
    return Finding("shell commands", apart, f"exit code {result.exit_code}, streams apart", result.text)


async def _interrupt(session: AsyncSession) -> Finding:
    result = await session.execute("import time; time.sleep(60)", timeout=0.2)
    found = f"{result.timing.run - 0.2:.2f} s to control, state {result.state}"
    return Finding("timeouts keep state", result.state == "kept", found, "Signals do not reach the kernel.")


async def _plots(session: AsyncSession) -> Finding:
    result = await session.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]);")
    mend = "Install matplotlib in the kernel's environment to see plots."
    return Finding("optional: plots", bool(result.images), f"{len(result.images)} picture", mend)


_KERNEL_CHECKS: tuple[Callable[[AsyncSession], Awaitable[Finding]], ...] = (_cell, _command, _interrupt, _plots)


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
        mark = "ok" if finding.ok else "no" if finding.check.startswith("optional") else "FAIL"
        table.add_row(mark, finding.check, finding.found, "" if finding.ok else finding.mend)
    console = Console()
    with writing(sys.stdout), console.capture() as captured:
        console.print(table)
    return captured.get()
