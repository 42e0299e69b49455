"""The kernelspecs that are installed on this machine: found by name or language, and what their kernels are started with."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from kernelexec.errors import InvalidRequest

Transport = Literal["ipc", "tcp"]

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True)
class InstalledSpec:
    """One kernelspec. ``label`` is what its kernel is called: its language, or its name where another has that language."""

    name: str
    label: str
    directory: str
    spec: KernelSpec

    @property
    def interrupt_mode(self) -> str:
        """How its kernel wants to be interrupted: by ``signal`` or by ``message``."""
        return str(self.spec.interrupt_mode)

    @property
    def transport(self) -> Transport:
        """How its kernel is reached.

        Unix sockets need libzmq and the way in which ipykernel names them, which kernels in Python have; the others may
        die of them (deno) or bind somewhere else (IRkernel), so they get what every kernel can: tcp on a loopback address. A
        kernelspec may say ``{"kernelexec": {"transport": "ipc"}}`` in its metadata.
        """
        said = self.spec.metadata.get("kernelexec")
        wanted = said.get("transport") if isinstance(said, dict) else None
        if wanted in ("ipc", "tcp"):
            return "ipc" if wanted == "ipc" else "tcp"
        return "ipc" if _PYTHON.fullmatch(Path(self.spec.argv[0]).name) else "tcp"

    def argv(self, connection_file: Path) -> list[str]:
        """The kernel's command, its placeholders filled in as jupyter_client does it."""
        known = {
            "connection_file": str(connection_file),
            "resource_dir": self.directory,
            "kernel_name": self.name,
            "prefix": sys.prefix,
        }
        words = [_PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), str(word)) for word in self.spec.argv]
        if words and words[0] in {"python", f"python{sys.version_info[0]}", "python{}.{}".format(*sys.version_info[:2])}:
            words[0] = sys.executable
        return words


def find_spec(wanted: str) -> InstalledSpec | None:
    """The kernelspec of that name, else the first one of that language; None where there is neither.

    Raises:
        InvalidRequest: it is there, but no program can be started by it.
    """
    specs = _specs()
    name = _choice(wanted, specs)
    if name is None:
        return None
    language = str(specs[name]["spec"].get("language") or name).lower()
    label = language if _choice(language, specs) == name and language != "python" else name
    spec = KernelSpec(**specs[name]["spec"])
    _check(name, spec, specs[name]["resource_dir"])
    return InstalledSpec(name, label, specs[name]["resource_dir"], spec)


def installed() -> tuple[str, ...]:
    """What is installed, for a message: each kernelspec's name, with its language where that is another word."""
    languages = {name: str(found["spec"].get("language") or name) for name, found in _specs().items()}
    return tuple(f"{name} ({said})" if said.lower() != name else name for name, said in sorted(languages.items()))


def _check(name: str, spec: KernelSpec, directory: str) -> None:
    why = "" if spec.argv else "argv is empty"
    if any("\x00" in str(word) for word in spec.argv):
        why = "argv holds a NUL character"
    if not all(isinstance(text, str) and "\x00" not in text for text in (*spec.env, *spec.env.values())):
        why = "env holds what is no text without NUL characters"
    if why:
        message = f"The kernelspec {name!r} in {directory} cannot be used: {why}. Mend its kernel.json."
        raise InvalidRequest(message)


def _choice(wanted: str, specs: Mapping[str, Any]) -> str | None:
    if wanted in specs:
        return wanted
    return _first(name for name, found in sorted(specs.items()) if str(found["spec"].get("language", "")).lower() == wanted)


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)


def _specs() -> dict[str, Any]:
    found: dict[str, Any] = KernelSpecManager().get_all_specs()
    return found
