"""Settings of the interpreter and the programs that cells use."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from kernelexec.config.types import Directory, FrozenModel

_SYSTEM = re.compile(r"[a-z0-9][a-z0-9+.-]{1,100}(?::[a-z0-9]{1,20})?(?:=[A-Za-z0-9.+:~-]{1,100})?", re.ASCII)
_NPM_NAME, _NPM_VERSION = r"(?:@[a-z0-9][a-z0-9._-]{0,100}/)?[a-z0-9][a-z0-9._-]{0,100}", r"[\w^~<>=*][\w.^~<>=*+-]{0,60}"
_NPM = re.compile(rf"{_NPM_NAME}(?:@{_NPM_VERSION})?", re.ASCII)


def _check_prefix(value: str) -> str:
    """Check that a prefix is split into words as by a shell, without expansion."""
    try:
        words = shlex.split(value)
    except ValueError as exc:
        message = f"must be quoted as for a shell ({exc})"
        raise ValueError(message) from exc
    if not words or not words[0] or "\0" in value:
        raise ValueError("must name a program, as in 'uv run': set one, or remove it")
    return value


def _check_venv(value: Path) -> Path:
    try:
        return value.expanduser().absolute()
    except OSError as exc:
        raise ValueError("must not be relative to a directory that no longer exists") from exc


def _name_checker(pattern: re.Pattern[str], noun: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            message = f"must be the name of {noun}, with or without a version"
            raise ValueError(message)
        return value

    return check


class Preinstall(FrozenModel):
    """Packages that are installed before the first cell of a new session: in this order, 600 s each.

    The first result's notes report failures; the session opens anyway.
    """

    system: tuple[Annotated[str, AfterValidator(_name_checker(_SYSTEM, "a Debian package"))], ...] = ()
    """Debian packages, installed by ``apt-get`` in containers with a network and ``sudo``."""
    python: tuple[str, ...] = ()
    """Python packages, as for ``session.install``."""
    npm: tuple[Annotated[str, AfterValidator(_name_checker(_NPM, "a package of npm"))], ...] = ()
    """Node packages, installed by ``npm install`` in the workspace if there is a network."""
    wheels: Directory | None = None
    """A directory of wheels for ``python``, as for ``session.install``."""


class InterpreterOptions(FrozenModel):
    """The programs and packages that cells find first. A prefix has priority over ``venv``, and that over the workspace's."""

    venv: Annotated[Directory, AfterValidator(_check_venv)] | None = None
    """The path of a virtual environment; in containers, the path there. The default is ``.venv`` of the session's workspace,
    if it exists. Commands find its programs first. Python cells import from it, or run on its interpreter if that has
    ipykernel, is on this machine, and cannot be written by kernels."""
    prefix: Annotated[str, AfterValidator(_check_prefix)] | None = None
    """A prefix of each whole command: ``uv run``, ``conda run -n NAME``, ``poetry run``. Commands then ignore virtual
    environments."""
    prefix_kernel: bool = Field(default=False, strict=True)
    """Whether Python kernels on this machine are started with the prefix too: with ``python``, or the option ``python`` if set,
    which needs ipykernel. Such kernels are confined before the prefix's program starts, and are not forked."""

    preinstall: Preinstall = Field(default_factory=Preinstall)
    """Packages that are installed before a session's first cell."""

    @property
    def launcher_options(self) -> dict[str, object]:
        """Return the options for the launcher, with paths as kernels see them."""
        return {"venv": None if self.venv is None else str(self.venv), "prefix": self.prefix_words}

    @property
    def prefix_words(self) -> list[str]:
        """Return the prefix as a program and its arguments."""
        return shlex.split(self.prefix or "")
