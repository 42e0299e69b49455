"""Which programs commands find first: those behind a prefix, or those of a virtual environment."""

from __future__ import annotations

import os
import platform as python_platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import platform
from . import packages

#: What a workspace's own virtual environment is called.
NAME = ".venv"
_ACTIVE = "VIRTUAL_ENV"


class Programs:
    """What an owner said of them; nothing where nothing was said.

    A prefix goes over a virtual environment that was named, and that over ``.venv`` of the directory that the kernel is at
    home in, which is looked for each time.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.prefix: list[str] = list(said.get("prefix") or ())
        self.told: dict[str, Any] | None = None
        """What was found for the imports of cells; None before the first one."""
        self._said = bool(said)
        self._named: str | None = said.get("venv")
        self._active = os.environ.get(_ACTIVE)
        self.be_at_home()

    def check(self) -> None:
        """Refuse a virtual environment that was named and is none.

        Raises:
            SystemExit: the last words of this process.
        """
        if self._named is not None and not _has_programs(self._named):
            why = "is none" if os.path.isdir(self._named) else "is not there"  # noqa: PTH112 - text in, text out
            lack = f"it has no directory {platform.HERE.programs}"
            sys.exit(f"The virtual environment {self._named} {why}: {lack}. Make it, or leave it out.")

    def be_at_home(self) -> None:
        """Look for all anew from the directory that this process is in now."""
        self._home, self.pending = "", self._said
        with suppress(OSError):
            self._home = os.getcwd()  # noqa: PTH109 - as above

    @property
    def venv(self) -> str | None:
        """The virtual environment that counts now."""
        if not self._said or self._named is not None:
            return self._named
        found = os.path.join(self._home, NAME)  # noqa: PTH118 - as above
        return found if _has_programs(found) else None

    @property
    def active(self) -> str | None:
        """The one whose programs commands find."""
        mine = self._active == os.environ.get(_ACTIVE)  # else a cell has chosen another one
        return self.venv if mine and not self.prefix else None

    def environment(self, changes: Mapping[str, str | None], since: str | None = None) -> dict[str, str]:
        """The environment of a command: this process's, the virtual environment's programs first, and what others changed.

        Who set PATH ``since`` this virtual environment was active had its programs there: that PATH stays as it is.
        """
        found = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
        venv = self.active
        if venv is None or _ACTIVE in changes:
            return found
        found[_ACTIVE] = venv
        if "PYTHONHOME" not in changes:
            found.pop("PYTHONHOME", None)
        if "PATH" not in changes or since != venv:
            found["PATH"] = os.pathsep.join([os.path.join(venv, platform.HERE.programs), found.get("PATH") or os.defpath])  # noqa: PTH118
        return found

    def serve(self) -> dict[str, Any] | None:
        """Have cells import from the virtual environment too, where that can be; what is to be told of it."""
        self.pending = False
        venv = self.venv
        self.told = None if venv is None else {"path": venv, "served": packages.served(venv)}
        return self.told

    def listing(self) -> dict[str, Any]:
        """All that is told of them, and of the interpreter; nothing of the user's runs for it."""
        installed = packages.distributions(sys.path)
        system = f"{python_platform.system()} {python_platform.release()}"  # `platform.platform()` would start a program
        with suppress(OSError):
            system = python_platform.freedesktop_os_release()["PRETTY_NAME"]
        interpreter = {"python": sys.executable, "version": ".".join(map(str, sys.version_info[:3])), "prefix": sys.prefix}
        interpreter["system"] = system
        venv, way = self.venv, self.told or {}
        served = way.get("served") if venv is not None and way.get("path") == venv else None
        found = {**interpreter, "venv": venv, "served": served, "command_prefix": self.prefix, "packages": installed}
        return {"status": "ok", **found}


def _has_programs(venv: str) -> bool:
    return os.path.isdir(os.path.join(venv, platform.HERE.programs))  # noqa: PTH112, PTH118 - it is asked at each command
