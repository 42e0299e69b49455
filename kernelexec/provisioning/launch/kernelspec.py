"""From settings to a provisioner: the kernelspec stays in memory, jupyter_client finds the provisioner by its name."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from kernelexec.errors import KernelStartFailed
from kernelexec.launcher import protocol
from kernelexec.provisioning.jupyter.installed import InstalledSpec
from kernelexec.workspace.directory import gone

LAUNCHER = Path(__file__).resolve().parents[2] / "launcher"
#: How much of a script's first line the system reads.
_LINE_BYTES = 256
PROVISIONER, FORKING, WRAPPED = "kernelexec-local", "kernelexec-fork", "kernelexec-wrapped"


class KernelNotHeard(KernelStartFailed):
    """A kernel did not say in time that it serves: it may, where nobody here hears it."""


#: How a Python runs the guard: by the standard library alone, whatever is in its environment.
GUARD = ("-I", "-S")


def kernel_spec(
    python: str,
    connection_file: Path | None,
    *,
    launcher: str = str(LAUNCHER),
    forked_by: object = None,
    prefix: Sequence[str] = (),
    confined: bool = False,
) -> KernelSpec:
    """The kernelspec of one kernel: our launcher in an interpreter of choice, under our provisioner.

    Without a ``connection_file`` the launcher's order says all. A fork server may be named that has the launcher ready, or a
    ``prefix`` that starts the interpreter. What is to be ``confined`` is so before any of that begins: by this process's own
    interpreter, without anything that it could import of others.
    """
    name, options = (PROVISIONER, {}) if forked_by is None else (FORKING, {"server": forked_by})
    before = (sys.executable, *GUARD, launcher, protocol.CONFINED_FLAG) if confined else ()
    return KernelSpec(
        argv=[*before, *prefix, python, launcher, *(["-f", str(connection_file)] if connection_file else [])],
        display_name="Python (kernelexec)",
        language="python",
        interrupt_mode="message",
        metadata={"kernel_provisioner": {"provisioner_name": WRAPPED if prefix else name, "config": options}},
    )


def guarded_spec(
    installed: InstalledSpec,
    connection_file: Path,
    *,
    guard: tuple[str, ...] = (sys.executable, *GUARD, str(LAUNCHER), protocol.GUARD_FLAG),
) -> KernelSpec:
    """The kernelspec of a kernel that is not ours: its own command under our guard and our provisioner, whatever it names."""
    return KernelSpec(
        argv=[*guard, *installed.argv(connection_file)],
        display_name=installed.spec.display_name,
        language=installed.spec.language,
        env={name: value for name, value in installed.spec.env.items() if not name.startswith("KERNELEXEC_")},
        interrupt_mode=installed.interrupt_mode,
        metadata={"kernel_provisioner": {"provisioner_name": PROVISIONER, "config": {}}},
    )


def create_provisioner(kernel_id: str, spec: KernelSpec) -> KernelProvisionerBase:
    """The provisioner that the kernelspec names.

    Raises:
        KernelStartFailed: it is not registered: the installation is incomplete.
    """
    try:
        return KernelProvisionerFactory.instance().create_provisioner_instance(kernel_id, spec, parent=None)
    except ModuleNotFoundError as exc:
        message = f"{exc} Reinstall kernelexec: its entry points are missing."
        raise KernelStartFailed(message) from exc


def check_directory(cwd: str) -> None:
    """Refuse a workspace that is not there, or no directory, as the system would if a process were started in it.

    Raises:
        KernelStartFailed: see above.
    """
    try:
        with os.scandir(cwd):
            pass
    except OSError as exc:
        raise KernelStartFailed(start_failure(exc, "", cwd)) from exc


def check_program(python: str, cwd: str) -> None:
    """Refuse an interpreter, by its path, that is not there or no program, as the system would if this process started it.

    Raises:
        KernelStartFailed: see above.
    """
    path = os.path.expanduser(python)  # noqa: PTH111 - text in, text out
    lacking = _lacks_its_own(path)
    if os.sep in path and (lacking or shutil.which(path) is None):
        code = errno.EACCES if Path(path).exists() and not lacking else errno.ENOENT
        raise KernelStartFailed(start_failure(OSError(code, os.strerror(code), path), python, cwd))


def _lacks_its_own(script: str) -> bool:
    """Whether its first line names an interpreter that is not there."""
    with suppress(OSError), Path(script).open("rb") as file:
        line = file.readline(_LINE_BYTES)
        named = line[2:].split()[:1] if line.startswith(b"#!") else []
        return any(not Path(os.fsdecode(name)).exists() for name in named)
    return False


def start_failure(exc: OSError, python: str, cwd: str) -> str:
    """Why no process was started: the system says by the file's name whether it is the directory or the interpreter."""
    reason = exc.strerror or str(exc)
    if exc.filename == cwd:
        return gone(cwd) if exc.errno == errno.ENOENT else f"No kernel can start in the workspace {cwd}: {reason}."
    if exc.filename not in (python, os.path.expanduser(python)):  # noqa: PTH111 - as jupyter_client does it
        return f"The kernel cannot be started: {exc}."
    if exc.errno == errno.ENOENT and Path(python).exists():
        reason = "it is there, but the program that runs it (its first line names it, or its loader) is not"
    elif Path(python).is_symlink():
        reason += f" ({Path(python).readlink()}, which it is a link to)"
    return f"{python} cannot be started: {reason}. Choose an interpreter that has ipykernel by the option `python`."


def complaint(stderr: str, python: str | None) -> str:
    """What to say of a kernel's last words; with the remedy where it is our launcher's, in ``python``, that lacks ipykernel."""
    if python is not None and re.search(r"No module named '?(?:ipykernel|IPython|zmq)\b", stderr):
        return f" {python} has no ipykernel: install it there with `pip install ipykernel`."
    return f" Its stderr ended with:\n{stderr}" if stderr else ""
