"""Kernelspecs, both installed and ours, the provisioners of kernelspecs, and reasons of failed starts."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from kernelexec.errors import InvalidRequest, KernelStartFailed
from kernelexec.launcher import protocol
from kernelexec.provisioning.launch import GUARD, LAUNCHER
from kernelexec.provisioning.provisioner import KernelexecProvisioner
from kernelexec.provisioning.runtime.kernel_directory import Transport
from kernelexec.workspace.directory import missing_workspace_message

if TYPE_CHECKING:
    from kernelexec.docker.images.image_info import ImageFacts


_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")
_PYTHON = re.compile(r"python[0-9.]*")
#: The part of a script's first line that Linux reads (BINPRM_BUF_SIZE).
_LINE_BYTES = 256
PROVISIONER, FORKING, WRAPPED = "kernelexec-local", "kernelexec-fork", "kernelexec-wrapped"


@dataclass(frozen=True, slots=True)
class PythonInstallation:
    """The Python installation for the ``python`` and ``{prefix}`` of kernelspecs."""

    executable: str = sys.executable
    prefix: str = sys.prefix
    version: tuple[int, ...] = sys.version_info[:2]


@dataclass(frozen=True, slots=True)
class InstalledSpec:
    """An installed kernelspec.

    ``label`` is the language if this is the first kernelspec for a language other than Python, else the name.
    """

    name: str
    label: str
    directory: str
    spec: KernelSpec
    python: PythonInstallation = PythonInstallation()

    @property
    def interrupt_mode(self) -> str:
        """How to interrupt the kernel: by ``signal`` or by ``message``."""
        return str(self.spec.interrupt_mode)

    @property
    def transport(self) -> Transport:
        """The transport of the channels.

        Unix sockets need libzmq and ipykernel's naming of sockets, as in kernels in Python. Other kernels may crash (deno) or
        bind another path (IRkernel), so the default for these is tcp on a loopback address, supported by all kernels. The
        metadata of a kernelspec may choose: ``{"kernelexec": {"transport": "ipc"}}``.
        """
        options = self.spec.metadata.get("kernelexec")
        wanted = options.get("transport") if isinstance(options, dict) else None
        if wanted in ("ipc", "tcp"):
            return "ipc" if wanted == "ipc" else "tcp"
        return "ipc" if _PYTHON.fullmatch(Path(self.spec.argv[0]).name) else "tcp"

    def argv(self, connection_file: Path) -> list[str]:
        """Return the kernel's command with placeholders filled in as by jupyter_client."""
        values = {
            "connection_file": str(connection_file),
            "resource_dir": self.directory,
            "kernel_name": self.name,
            "prefix": self.python.prefix,
        }
        words = [_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), str(word)) for word in self.spec.argv]
        # As in KernelManager.format_kernel_cmd: only these names mean the installation's interpreter, not that on PATH.
        names = {"python", *("python" + ".".join(map(str, self.python.version[:length])) for length in (1, 2))}
        if words and words[0] in names:
            words[0] = self.python.executable
        return words


@dataclass(frozen=True, slots=True)
class KernelspecCatalog:
    """All kernelspecs of this machine or of an image, by name."""

    specs: Mapping[str, Any]
    home: PythonInstallation = PythonInstallation()

    @classmethod
    def on_this_machine(cls) -> KernelspecCatalog:
        """Return the kernelspecs now installed on this machine."""
        return cls(KernelSpecManager().get_all_specs())

    @classmethod
    def in_image(cls, facts: ImageFacts) -> KernelspecCatalog:
        """Return the kernelspecs of an image, from the facts listed by a container."""
        python = PurePosixPath(facts.executable or "/")
        version = tuple(int(part) for part in (facts.python or "").split(".")[:2] if part.isdigit())
        return cls(facts.kernelspecs, PythonInstallation(str(python), str(python.parent.parent), version))

    def find(self, wanted: str) -> InstalledSpec | None:
        """Return the kernelspec of that name or else language, or None; raise ``InvalidRequest`` for an invalid kernelspec."""
        name = _choose(wanted, self.specs)
        if name is None:
            return None
        language = str(self.specs[name]["spec"].get("language") or name).lower()
        label = language if _choose(language, self.specs) == name and language != "python" else name
        directory = self.specs[name]["resource_dir"]
        return InstalledSpec(name, label, directory, _check_spec(name, self.specs[name]["spec"], directory), self.home)

    def describe(self) -> tuple[str, ...]:
        """Return the names of all kernelspecs for a message, each with the language if different from the name."""
        languages = {name: str(entry["spec"].get("language") or name) for name, entry in self.specs.items()}
        return tuple(
            f"{name} ({language})" if language.lower() != name else name for name, language in sorted(languages.items())
        )


def _check_spec(name: str, content: Mapping[str, Any], directory: str) -> KernelSpec:
    spec = KernelSpec(**content)
    reason = "" if spec.argv else "argv is empty"
    if any("\x00" in str(word) for word in spec.argv):
        reason = "argv holds a NUL character"
    if not all(isinstance(text, str) and "\x00" not in text for text in (*spec.env, *spec.env.values())):
        reason = "env must hold text without NUL characters"
    if reason:
        message = f"The kernelspec {name!r} in {directory} cannot be used: {reason}. Correct its kernel.json."
        raise InvalidRequest(message)
    return spec


def _choose(wanted: str, specs: Mapping[str, Any]) -> str | None:
    languages = {name: str(entry["spec"].get("language", "")).lower() for name, entry in sorted(specs.items())}
    return wanted if wanted in specs else next((name for name, language in languages.items() if language == wanted), None)


class KernelReadyTimeout(KernelStartFailed):
    """A kernel did not report readiness in time; the kernel may serve, and only the report may not arrive."""


def create_kernel_spec(
    python: str,
    connection_file: Path | None,
    *,
    launcher: str = str(LAUNCHER),
    forked_by: object = None,
    prefix: Sequence[str] = (),
    confined: bool = False,
) -> KernelSpec:
    """Return the kernelspec of a single kernel: our launcher in an interpreter of choice, under our provisioner.

    Without a ``connection_file`` the launcher reads everything from options. ``forked_by`` is a fork server, ``prefix`` a
    command for starting the interpreter. Confinement of a ``confined`` kernel comes before both, in this process's own
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
        # A kernelspec of a workspace or a package must not set the launcher's options or the mark of processes.
        env={name: value for name, value in installed.spec.env.items() if not name.startswith("KERNELEXEC_")},
        interrupt_mode=installed.interrupt_mode,
        metadata={"kernel_provisioner": {"provisioner_name": PROVISIONER, "config": {}}},
    )


@cache
def _read_own_provisioners() -> metadata.EntryPoints:
    """Return our entry points, read once, since a process may give up the right to read its own files."""
    return metadata.distribution("kernelexec").entry_points.select(group=KernelProvisionerFactory.GROUP_NAME)


def create_provisioner(kernel_id: str, spec: KernelSpec) -> KernelexecProvisioner:
    """Return a new provisioner of the kernelspec's class; raise ``KernelStartFailed`` without an entry point of ours.

    jupyter_client's factory would read the entry points of all installed packages.
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
    """Raise ``KernelStartFailed`` for an unusable workspace directory, with the message of a failed start there."""
    try:
        with os.scandir(cwd):
            pass
    except OSError as exc:
        raise KernelStartFailed(explain_start_failure(exc, "", cwd)) from exc


def check_program(python: str, cwd: str) -> None:
    """Raise ``KernelStartFailed`` for a path without a program, with the message of a failed start."""
    path = os.path.expanduser(python)  # noqa: PTH111 - text in, text out
    has_no_interpreter = _is_interpreter_missing(path)
    if os.sep in path and (has_no_interpreter or shutil.which(path) is None):
        code = errno.EACCES if Path(path).exists() and not has_no_interpreter else errno.ENOENT
        raise KernelStartFailed(explain_start_failure(OSError(code, os.strerror(code), path), python, cwd))


def _is_interpreter_missing(script: str) -> bool:
    """Return whether the first line of a script names a missing interpreter."""
    with suppress(OSError), Path(script).open("rb") as file:
        line = file.readline(_LINE_BYTES)
        named = line[2:].split()[:1] if line.startswith(b"#!") else []
        return any(not Path(os.fsdecode(name)).exists() for name in named)
    return False


def explain_start_failure(exc: OSError, python: str, cwd: str) -> str:
    """Return the reason of a failed start; the error's file name tells the directory from the interpreter."""
    reason = exc.strerror or str(exc)
    if exc.filename == cwd:
        return (
            missing_workspace_message(cwd)
            if exc.errno == errno.ENOENT
            else f"No kernel can start in the workspace {cwd}: {reason}."
        )
    if exc.filename not in (python, os.path.expanduser(python)):  # noqa: PTH111 - as jupyter_client does it
        return f"The kernel cannot be started: {exc}."
    # ENOENT for a file that exists: execve(2) reports so the missing interpreter of a script or an ELF program.
    if exc.errno == errno.ENOENT and Path(python).exists():
        reason = "the file exists, but its interpreter (in its first line) or its loader does not"
    elif Path(python).is_symlink():
        reason += f" ({Path(python).readlink()}, which it is a link to)"
    return f"{python} cannot be started: {reason}. Choose an interpreter that has ipykernel by the option `python`."


def describe_stderr(stderr: str, python: str | None) -> str:
    """Return a sentence with the end of a kernel's stderr, or with the remedy if ``python`` lacks ipykernel; empty without."""
    if python is not None and re.search(r"No module named '?(?:ipykernel|IPython|zmq)\b", stderr):
        return f" {python} has no ipykernel: install it there with `pip install ipykernel`."
    return f" Its stderr ended with:\n{stderr}" if stderr else ""
