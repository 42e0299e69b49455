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
from kernelexec.provisioning.launch.program import LAUNCHER

_NAME = re.compile(r"[a-z0-9._-]+")
_PROVISIONERS = {"container": "kernelexec-container", "local": "kernelexec-local"}


@dataclass(frozen=True, slots=True)
class OwnKernelspec:
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
    container_options = dict(container or {})
    options = load(isolation, config={"container": container_options} | ({"python": python} if python else {}))
    if not _NAME.fullmatch(name):
        message = f"{name!r} cannot be a kernelspec's name: use lower-case letters, digits, dots, underscores and dashes."
        raise InvalidRequest(message)
    local = isolation == "local"
    directory = _create_manager(prefix).find_kernel_specs().get(name)
    if directory is not None and _read_isolation(_read_spec(Path(directory))) is None:
        message = f"The kernelspec {name!r} in {directory} belongs to another program: choose another name by --name."
        raise InvalidRequest(message)
    interpreter, launcher = (options.python, str(LAUNCHER)) if local else (options.container.python, LAUNCHER_INSIDE)
    config = {} if local else {"container": container_options} | ({"share_home": True} if share_home else {})
    spec = {
        "argv": [interpreter, launcher, "-f", "{connection_file}"],
        "display_name": display_name,
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {"kernel_provisioner": {"provisioner_name": _PROVISIONERS[isolation], "config": config}},
    }
    with tempfile.TemporaryDirectory() as source:
        (Path(source) / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
        location: dict[str, Any] = {"user": True} if prefix is None else {"prefix": str(prefix)}
        return Path(_create_manager(prefix).install_kernel_spec(source, name, **location))


def remove_spec(name: str, *, prefix: Path | None = None) -> Path:
    """Remove a kernelspec of ours and return its directory.

    Raises:
        InvalidRequest: no kernelspec has that name, or it is not ours.
        OSError: it cannot be removed.
    """
    ours = [spec.name for spec in list_own_specs(prefix=prefix)]
    if name not in ours:
        existing = f"there are {', '.join(ours)}" if ours else "none is installed"
        message = f"No kernelspec {name!r} of kernelexec{did_you_mean(name, ours)}: {existing}."
        raise InvalidRequest(message)
    return Path(_create_manager(prefix).remove_kernel_spec(name))


def list_own_specs(*, prefix: Path | None = None) -> list[OwnKernelspec]:
    """Return our kernelspecs that Jupyter finds, and those below ``prefix``, sorted by name."""
    specs = []
    for name, directory in sorted(_create_manager(prefix).find_kernel_specs().items()):
        content = _read_spec(Path(directory))
        isolation = _read_isolation(content)
        if isolation is not None:
            image = None if isolation == "local" else _read_image(content)
            specs.append(OwnKernelspec(name, str(content.get("display_name", name)), directory, isolation, image))
    return specs


def _create_manager(prefix: Path | None) -> KernelSpecManager:
    manager = KernelSpecManager(ensure_native_kernel=False, log=logging.getLogger("kernelexec.kernelspecs"))
    if prefix is not None:
        directory = str(prefix.absolute() / "share" / "jupyter" / "kernels")
        manager.kernel_dirs = [directory, *(other for other in manager.kernel_dirs if other != directory)]
    return manager


def _read_spec(directory: Path) -> dict[str, Any]:
    try:
        content = json.loads((directory / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_isolation(content: Mapping[str, Any]) -> str | None:
    """Return the isolation of a kernelspec, if it is ours."""
    named = _get_nested(content, "metadata", "kernel_provisioner").get("provisioner_name")
    return next((isolation for isolation, provisioner in _PROVISIONERS.items() if provisioner == named), None)


def _read_image(content: Mapping[str, Any]) -> str:
    config = _get_nested(content, "metadata", "kernel_provisioner", "config", "container")
    image = config.get("image", load("container").container.image)
    return str(image) if isinstance(image, str) else " or ".join(map(str, image))


def _get_nested(content: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        inner = content.get(name)
        content = inner if isinstance(inner, dict) else {}
    return content
