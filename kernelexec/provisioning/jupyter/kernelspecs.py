"""Our kernelspecs for other Jupyter applications, which jupyter_client installs, removes and lists."""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager

from kernelexec.config import load
from kernelexec.docker.labels import LAUNCHER_INSIDE
from kernelexec.errors import InvalidRequest, did_you_mean
from kernelexec.provisioning.launch.kernelspec import LAUNCHER

_NAME = re.compile(r"[a-z0-9._-]+")
_PROVISIONERS = {"container": "kernelexec-container", "local": "kernelexec-local"}


@dataclass(frozen=True, slots=True)
class OurSpec:
    """An installed kernelspec of ours. ``image`` is the image of its containers; None means this machine."""

    name: str
    display_name: str
    directory: str
    isolation: str
    image: str | None


def install_spec(
    name: str,
    display_name: str,
    *,
    isolation: str = "container",
    container: Mapping[str, Any] | None = None,
    python: str | None = None,
    share_home: bool = False,
    prefix: Path | None = None,
) -> Path:
    """Install a kernelspec, or replace one of ours, and return its directory. A ``prefix`` of None means the user's own.

    Raises:
        InvalidRequest: the name is invalid or another program's, or an option of containers is unknown.
        OSError: the directory cannot be written.
    """
    given = dict(container or {})
    options = load(isolation, config={"container": given} | ({"python": python} if python else {}))
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot be a kernelspec's name: it is lower-case letters, digits, dots, underscores and dashes."
        raise InvalidRequest(message)
    local = isolation == "local"
    directory = _manager(prefix).find_kernel_specs().get(name)
    if directory is not None and _isolation(_read(Path(directory))) is None:
        message = f"The kernelspec {name!r} in {directory} is not of kernelexec: choose another name by --name."
        raise InvalidRequest(message)
    interpreter, launcher = (options.python, str(LAUNCHER)) if local else (options.container.python, LAUNCHER_INSIDE)
    config = {} if local else {"container": given} | ({"share_home": True} if share_home else {})
    spec = {
        "argv": [interpreter, launcher, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"kernel_provisioner": {"provisioner_name": _PROVISIONERS[isolation], "config": config}},
    }
    with tempfile.TemporaryDirectory() as source:
        (Path(source) / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        where: dict[str, Any] = {"user": True} if prefix is None else {"prefix": str(prefix)}
        return Path(_manager(prefix).install_kernel_spec(source, name, **where))


def remove_spec(name: str, *, prefix: Path | None = None) -> Path:
    """Remove a kernelspec of ours and return its directory.

    Raises:
        InvalidRequest: there is none of that name, or it is not ours.
        OSError: it cannot be removed.
    """
    ours = [spec.name for spec in our_specs(prefix=prefix)]
    if name not in ours:
        there = f"there are {', '.join(ours)}" if ours else "none is installed"
        message = f"No kernelspec {name!r} of kernelexec{did_you_mean(name, ours)}: {there}."
        raise InvalidRequest(message)
    return Path(_manager(prefix).remove_kernel_spec(name))


def our_specs(*, prefix: Path | None = None) -> list[OurSpec]:
    """Return our kernelspecs that Jupyter finds, and those below ``prefix``, sorted by name."""
    found = []
    for name, directory in sorted(_manager(prefix).find_kernel_specs().items()):
        said = _read(Path(directory))
        isolation = _isolation(said)
        if isolation is not None:
            image = None if isolation == "local" else _image(said)
            found.append(OurSpec(name, str(said.get("display_name", name)), directory, isolation, image))
    return found


def _manager(prefix: Path | None) -> KernelSpecManager:
    manager = KernelSpecManager(ensure_native_kernel=False, log=logging.getLogger("kernelexec.kernelspecs"))
    if prefix is not None:
        place = str(prefix.absolute() / "share" / "jupyter" / "kernels")
        manager.kernel_dirs = [place, *(other for other in manager.kernel_dirs if other != place)]
    return manager


def _read(directory: Path) -> dict[str, Any]:
    try:
        said = json.loads((directory / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _isolation(said: Mapping[str, Any]) -> str | None:
    """Return the isolation of a kernelspec, if it is ours."""
    named = _inner(said, "metadata", "kernel_provisioner").get("provisioner_name")
    return next((isolation for isolation, provisioner in _PROVISIONERS.items() if provisioner == named), None)


def _image(said: Mapping[str, Any]) -> str:
    config = _inner(said, "metadata", "kernel_provisioner", "config", "container")
    image = config.get("image", load("container").container.image)
    return str(image) if isinstance(image, str) else " or ".join(map(str, image))


def _inner(said: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        inner = said.get(name)
        said = inner if isinstance(inner, dict) else {}
    return said
