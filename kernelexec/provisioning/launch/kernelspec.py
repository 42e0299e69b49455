"""Kernelspecs in memory, the provisioners that jupyter_client loads for them, and the reasons why a process did not start."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from kernelexec.errors import KernelStartFailed
from kernelexec.launcher import protocol
from kernelexec.provisioning.launch.installed import InstalledSpec
from kernelexec.provisioning.launch.program import GUARD, LAUNCHER
from kernelexec.provisioning.provisioner import KernelexecProvisioner
from kernelexec.workspace.directory import missing_workspace_message

#: The length of a script's first line that the system reads.
_LINE_BYTES = 256
PROVISIONER, FORKING, WRAPPED = "kernelexec-local", "kernelexec-fork", "kernelexec-wrapped"


class KernelReadyTimeout(KernelStartFailed):
    """A kernel did not report in time that it serves; it may serve where its report does not arrive."""


def create_kernel_spec(
    python: str,
    connection_file: Path | None,
    *,
    launcher: str = str(LAUNCHER),
    forked_by: object = None,
    prefix: Sequence[str] = (),
    confined: bool = False,
) -> KernelSpec:
    """Return the kernelspec of one kernel: our launcher in an interpreter of choice, under our provisioner.

    Without a ``connection_file`` the launcher reads everything from its options. ``forked_by`` is a fork server, ``prefix`` a
    command that starts the interpreter. A ``confined`` kernel is confined before any of these begins, by this process's own
    interpreter, which imports no untrusted file.
    """
    name, options = (PROVISIONER, {}) if forked_by is None else (FORKING, {"server": forked_by})
    confinement_command = (sys.executable, *GUARD, launcher, protocol.CONFINED_FLAG) if confined else ()
    return KernelSpec(
        argv=[*confinement_command, *prefix, python, launcher, *(["-f", str(connection_file)] if connection_file else [])],
        display_name="Python (kernelexec)",
        language="python",
        interrupt_mode="message",
        metadata={"kernel_provisioner": {"provisioner_name": WRAPPED if prefix else name, "config": options}},
    )


def create_guarded_spec(installed: InstalledSpec, connection_file: Path, *, guard: Sequence[str]) -> KernelSpec:
    """Return the kernelspec of a kernel without our launcher: its own command under our guard and our provisioner."""
    return KernelSpec(
        argv=[*guard, *installed.argv(connection_file)],
        display_name=installed.spec.display_name,
        language=installed.spec.language,
        env={name: value for name, value in installed.spec.env.items() if not name.startswith("KERNELEXEC_")},
        interrupt_mode=installed.interrupt_mode,
        metadata={"kernel_provisioner": {"provisioner_name": PROVISIONER, "config": {}}},
    )


@cache
def _read_own_provisioners() -> metadata.EntryPoints:
    """Return our entry points; they are read once, since a process may give up the right to read its own files."""
    return metadata.distribution("kernelexec").entry_points.select(group=KernelProvisionerFactory.GROUP_NAME)


def create_provisioner(kernel_id: str, spec: KernelSpec) -> KernelexecProvisioner:
    """Return a new provisioner of the class that the kernelspec names; raise ``KernelStartFailed`` without its entry point.

    jupyter_client's factory reads the entry points of all installed packages; these are our own.
    """
    stanza = spec.metadata["kernel_provisioner"]
    try:
        (point,) = _read_own_provisioners().select(name=stanza["provisioner_name"])
    except (metadata.PackageNotFoundError, ValueError) as exc:
        message = f"The provisioner {stanza['provisioner_name']!r} is not installed: reinstall kernelexec."
        raise KernelStartFailed(message) from exc
    provisioner = point.load()(kernel_id=kernel_id, kernel_spec=spec, parent=None, **stanza["config"])
    assert isinstance(provisioner, KernelexecProvisioner)
    return provisioner


def check_directory(cwd: str) -> None:
    """Raise the ``KernelStartFailed`` that starting a process in a workspace would give, if that is no directory."""
    try:
        with os.scandir(cwd):
            pass
    except OSError as exc:
        raise KernelStartFailed(explain_start_failure(exc, "", cwd)) from exc


def check_program(python: str, cwd: str) -> None:
    """Raise the ``KernelStartFailed`` that starting an interpreter would give, if its path names no program."""
    path = os.path.expanduser(python)  # noqa: PTH111 - text in, text out
    has_no_interpreter = _is_interpreter_missing(path)
    if os.sep in path and (has_no_interpreter or shutil.which(path) is None):
        code = errno.EACCES if Path(path).exists() and not has_no_interpreter else errno.ENOENT
        raise KernelStartFailed(explain_start_failure(OSError(code, os.strerror(code), path), python, cwd))


def _is_interpreter_missing(script: str) -> bool:
    """Return whether the first line of a script names an interpreter that does not exist."""
    with suppress(OSError), Path(script).open("rb") as file:
        line = file.readline(_LINE_BYTES)
        named = line[2:].split()[:1] if line.startswith(b"#!") else []
        return any(not Path(os.fsdecode(name)).exists() for name in named)
    return False


def explain_start_failure(exc: OSError, python: str, cwd: str) -> str:
    """Return why no process was started: the file name in the error is the directory's or the interpreter's."""
    reason = exc.strerror or str(exc)
    if exc.filename == cwd:
        return (
            missing_workspace_message(cwd)
            if exc.errno == errno.ENOENT
            else f"No kernel can start in the workspace {cwd}: {reason}."
        )
    if exc.filename not in (python, os.path.expanduser(python)):  # noqa: PTH111 - as jupyter_client does it
        return f"The kernel cannot be started: {exc}."
    if exc.errno == errno.ENOENT and Path(python).exists():
        reason = "the file exists, but its interpreter (in its first line) or its loader does not"
    elif Path(python).is_symlink():
        reason += f" ({Path(python).readlink()}, which it is a link to)"
    return f"{python} cannot be started: {reason}. Choose an interpreter that has ipykernel by the option `python`."


def describe_stderr(stderr: str, python: str | None) -> str:
    """Return a sentence with the end of a kernel's stderr, or with the remedy where ``python`` lacks ipykernel."""
    if python is not None and re.search(r"No module named '?(?:ipykernel|IPython|zmq)\b", stderr):
        return f" {python} has no ipykernel: install it there with `pip install ipykernel`."
    return f" Its stderr ended with:\n{stderr}" if stderr else ""
