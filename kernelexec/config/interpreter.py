"""The Python and the programs that the cells of a session see."""

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


def _prefix(value: str) -> str:
    """Check that a shell would read words; nothing in them is expanded."""
    try:
        words = shlex.split(value)
    except ValueError as exc:
        message = f"it cannot be read as words ({exc}): quote it as for a shell"
        raise ValueError(message) from exc
    if not words or not words[0] or "\0" in value:
        raise ValueError("it names no program: leave it out, or give one, as in 'uv run'")
    return value


def _venv(value: Path) -> Path:
    try:
        return value.expanduser().absolute()
    except OSError as exc:
        raise ValueError("it is relative to a directory that is gone") from exc


def _named(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            message = f"it is no name of {what}, with or without a version"
            raise ValueError(message)
        return value

    return check


class Preinstall(FrozenModel):
    """What new sessions have installed before their first cell: in this order, 600 s each.

    What fails is said by the first result's notes, and the session is there all the same.
    """

    system: tuple[Annotated[str, AfterValidator(_named(_SYSTEM, "a Debian package"))], ...] = ()
    """Packages of the image's system, by ``apt-get``: in containers with a network, where code becomes root."""
    python: tuple[str, ...] = ()
    """What ``session.install`` takes."""
    npm: tuple[Annotated[str, AfterValidator(_named(_NPM, "a package of npm"))], ...] = ()
    """Packages of node, by ``npm install`` in the workspace, where there is a network."""
    wheels: Directory | None = None
    """A directory of wheels for ``python``, as ``session.install`` takes it."""


class InterpreterOptions(FrozenModel):
    """What commands, and imports of Python cells, find first. A prefix goes over ``venv``, and that over a workspace's own."""

    venv: Annotated[Directory, AfterValidator(_venv)] | None = None
    """A virtual environment, by its path; in containers, by its path there. Unset means ``.venv`` of the session's workspace,
    as long as there is one. Commands find its programs first; Python cells import from it, or run on its interpreter, where
    that has ipykernel, is on this machine, and cannot be written by kernels."""
    prefix: Annotated[str, AfterValidator(_prefix)] | None = None
    """What is put before each command as a whole: ``uv run``, ``conda run -n NAME``, ``poetry run``. No virtual environment
    counts for commands then."""
    prefix_kernel: bool = Field(default=False, strict=True)
    """Whether Python cells run behind the prefix too, on this machine: by ``python`` there, or the option ``python`` where that
    is set, which needs ipykernel. Such kernels are confined before the prefix's program starts, and are not forked."""

    preinstall: Preinstall = Field(default_factory=Preinstall)
    """What new sessions have installed before their first cell."""

    @property
    def told(self) -> dict[str, object]:
        """Return the options for the launcher: paths as kernels see them, the prefix as a program and its arguments."""
        return {"venv": None if self.venv is None else str(self.venv), "prefix": self.words}

    @property
    def words(self) -> list[str]:
        """Return the prefix as a program and its arguments."""
        return shlex.split(self.prefix or "")
