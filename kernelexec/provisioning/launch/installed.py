"""Installed kernelspecs of this machine or of an image: found by name or language, with the commands of their kernels."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from kernelexec.errors import InvalidRequest
from kernelexec.provisioning.runtime.kernel_directory import Transport

if TYPE_CHECKING:
    from kernelexec.docker.images.image_info import ImageFacts

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True)
class PythonInstallation:
    """The Python installation that kernelspecs belong to."""

    executable: str = sys.executable
    prefix: str = sys.prefix
    version: tuple[int, ...] = sys.version_info[:2]


@dataclass(frozen=True, slots=True)
class InstalledSpec:
    """One kernelspec. ``label`` names its kernel: by its language, or by its name if another kernelspec has that language."""

    name: str
    label: str
    directory: str
    spec: KernelSpec
    python: PythonInstallation = PythonInstallation()

    @property
    def interrupt_mode(self) -> str:
        """How its kernel is interrupted: by ``signal`` or by ``message``."""
        return str(self.spec.interrupt_mode)

    @property
    def transport(self) -> Transport:
        """The transport of its channels.

        Unix sockets need libzmq and ipykernel's way of naming them, which kernels in Python have. Other kernels may crash
        (deno) or bind another path (IRkernel), so they get tcp on a loopback address, which all support. The metadata of a
        kernelspec may choose: ``{"kernelexec": {"transport": "ipc"}}``.
        """
        options = self.spec.metadata.get("kernelexec")
        wanted = options.get("transport") if isinstance(options, dict) else None
        if wanted in ("ipc", "tcp"):
            return "ipc" if wanted == "ipc" else "tcp"
        return "ipc" if _PYTHON.fullmatch(Path(self.spec.argv[0]).name) else "tcp"

    def argv(self, connection_file: Path) -> list[str]:
        """Return the kernel's command with its placeholders filled in as jupyter_client does it."""
        values = {
            "connection_file": str(connection_file),
            "resource_dir": self.directory,
            "kernel_name": self.name,
            "prefix": self.python.prefix,
        }
        words = [_PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), str(word)) for word in self.spec.argv]
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
        """Return the kernelspecs that are installed on this machine now."""
        return cls(KernelSpecManager().get_all_specs())

    @classmethod
    def in_image(cls, facts: ImageFacts) -> KernelspecCatalog:
        """Return the kernelspecs of an image, as a container of it listed them."""
        python = PurePosixPath(facts.executable or "/")
        version = tuple(int(part) for part in (facts.python or "").split(".")[:2] if part.isdigit())
        specs = {
            name: {
                "resource_dir": kernelspec.directory,
                "spec": {
                    "argv": list(kernelspec.argv),
                    "display_name": name,
                    "language": kernelspec.language,
                    "env": dict(kernelspec.environment),
                    "interrupt_mode": kernelspec.interrupt_mode,
                    "metadata": dict(kernelspec.metadata),
                },
            }
            for name, kernelspec in facts.kernelspecs.items()
        }
        return cls(specs, PythonInstallation(str(python), str(python.parent.parent), version))

    def find(self, wanted: str) -> InstalledSpec | None:
        """Return the kernelspec of that name or else language, or None; raise ``InvalidRequest`` if it is invalid."""
        name = _choose(wanted, self.specs)
        if name is None:
            return None
        language = str(self.specs[name]["spec"].get("language") or name).lower()
        label = language if _choose(language, self.specs) == name and language != "python" else name
        directory = self.specs[name]["resource_dir"]
        return InstalledSpec(name, label, directory, _check_spec(name, self.specs[name]["spec"], directory), self.home)

    def describe(self) -> tuple[str, ...]:
        """Return the name of each kernelspec, with its language if that is another word, for a message."""
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
