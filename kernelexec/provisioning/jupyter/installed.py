"""Installed kernelspecs, this machine's or an image's: found by name or language, and what their kernels are started with."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from kernelexec.errors import InvalidRequest

if TYPE_CHECKING:
    from kernelexec.docker.images.image_info import ImageFacts

Transport = Literal["ipc", "tcp", "bridged", "curve", "published"]
"""Unix sockets; ports of a loopback address; such ports, with unix sockets before them that the guard serves; such ports,
encrypted; or encrypted ones of a network of its own, that somebody publishes on this machine once the kernel runs."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True)
class Home:
    """The Python beside which kernelspecs are installed."""

    executable: str = sys.executable
    prefix: str = sys.prefix
    version: tuple[int, ...] = sys.version_info[:2]


@dataclass(frozen=True, slots=True)
class InstalledSpec:
    """One kernelspec. ``label`` is what its kernel is called: its language, or its name where another has that language."""

    name: str
    label: str
    directory: str
    spec: KernelSpec
    home: Home = Home()

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
            "prefix": self.home.prefix,
        }
        words = [_PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), str(word)) for word in self.spec.argv]
        names = {"python", *("python" + ".".join(map(str, self.home.version[:length])) for length in (1, 2))}
        if words and words[0] in names:
            words[0] = self.home.executable
        return words


@dataclass(frozen=True, slots=True)
class Installed:
    """All kernelspecs that there are in one place, by their names."""

    specs: Mapping[str, Any]
    home: Home = Home()

    @classmethod
    def here(cls) -> Installed:
        """This machine's, as they are now."""
        return cls(KernelSpecManager().get_all_specs())

    @classmethod
    def in_image(cls, facts: ImageFacts) -> Installed:
        """An image's, as a container of it told."""
        python = PurePosixPath(facts.executable or "/")
        version = tuple(int(part) for part in (facts.python or "").split(".")[:2] if part.isdigit())
        specs = {
            name: {
                "resource_dir": found.directory,
                "spec": {
                    "argv": list(found.argv),
                    "display_name": name,
                    "language": found.language,
                    "env": dict(found.environment),
                    "interrupt_mode": found.interrupt_mode,
                    "metadata": dict(found.metadata),
                },
            }
            for name, found in facts.kernelspecs.items()
        }
        return cls(specs, Home(str(python), str(python.parent.parent), version))

    def find(self, wanted: str) -> InstalledSpec | None:
        """The kernelspec of that name, else the first one of that language; None where there is neither.

        Raises:
            InvalidRequest: it is there, but no program can be started by it.
        """
        name = _choice(wanted, self.specs)
        if name is None:
            return None
        language = str(self.specs[name]["spec"].get("language") or name).lower()
        label = language if _choice(language, self.specs) == name and language != "python" else name
        directory = self.specs[name]["resource_dir"]
        return InstalledSpec(name, label, directory, _checked(name, self.specs[name]["spec"], directory), self.home)

    def told(self) -> tuple[str, ...]:
        """What is installed, for a message: each kernelspec's name, with its language where that is another word."""
        languages = {name: str(found["spec"].get("language") or name) for name, found in self.specs.items()}
        return tuple(f"{name} ({said})" if said.lower() != name else name for name, said in sorted(languages.items()))


def _checked(name: str, said: Mapping[str, Any], directory: str) -> KernelSpec:
    spec = KernelSpec(**said)
    why = "" if spec.argv else "argv is empty"
    if any("\x00" in str(word) for word in spec.argv):
        why = "argv holds a NUL character"
    if not all(isinstance(text, str) and "\x00" not in text for text in (*spec.env, *spec.env.values())):
        why = "env holds what is no text without NUL characters"
    if why:
        message = f"The kernelspec {name!r} in {directory} cannot be used: {why}. Mend its kernel.json."
        raise InvalidRequest(message)
    return spec


def _choice(wanted: str, specs: Mapping[str, Any]) -> str | None:
    if wanted in specs:
        return wanted
    return _first(name for name, found in sorted(specs.items()) if str(found["spec"].get("language", "")).lower() == wanted)


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)
