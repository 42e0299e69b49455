"""What may be installed: names with versions, and wheels by their paths; nothing that pip could take for an option."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kernelexec.errors import InvalidRequest
from kernelexec.results import Package

#: How many requirements one call takes.
MOST = 200
_LOCKED_MOST = 5000
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9._+!-]{0,62}[A-Za-z0-9])?"
_CLAUSE = rf"(?:===|[=~!<>]=|[<>])\s*{_VERSION}(?:\.\*)?"
_CLAUSES = rf"{_CLAUSE}(?:\s*,\s*{_CLAUSE})*"
_EXTRAS = rf"\[\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\]"
_MARKER = r";[\w\s.'\"<>=!~()-]{1,300}"
_REQUIREMENT = re.compile(rf"{_NAME}\s*(?:{_EXTRAS})?\s*(?:\(\s*{_CLAUSES}\s*\)|{_CLAUSES})?\s*(?:{_MARKER})?", re.ASCII)
_EXACT, _EXACT_VERSION = re.compile(_NAME, re.ASCII), re.compile(_VERSION, re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WHEEL = ".whl"


def checked(packages: object) -> tuple[str, ...]:
    """The requirements as text; one may be given by itself.

    Raises:
        InvalidRequest: there is none, there are too many, or one is no name with versions and no path of a wheel.
    """
    given = [packages] if isinstance(packages, str | os.PathLike) else packages
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes) else [given]
    if not 1 <= len(found) <= MOST:
        message = f"{len(found)} packages are given: name 1 to {MOST}."
        raise InvalidRequest(message)
    return tuple(_checked(one) for one in found)


def is_wheel(requirement: str) -> bool:
    """Whether it is the path of a wheel."""
    return requirement.endswith(_WHEEL)


def _checked(requirement: object) -> str:
    text = os.fspath(requirement) if isinstance(requirement, str | os.PathLike) else requirement
    if isinstance(text, str):
        text = text.strip()
        if is_wheel(text) and not text.startswith("-") and text.isprintable():
            return text
        if _REQUIREMENT.fullmatch(text):
            return " ".join(text.split())
    message = f"{requirement!r:.200} is no requirement: give a name with versions, as 'numpy>=2,<3', or the path of a wheel."
    raise InvalidRequest(message)


@dataclass(frozen=True, slots=True)
class Lock:
    """Exactly what a virtual environment holds, and the version of its Python."""

    python: str
    packages: tuple[Package, ...]

    @classmethod
    def read(cls, text: bytes, where: str) -> Lock:
        """From a file that cells may have written.

        Raises:
            InvalidRequest: it is no lock.
        """
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise _no_lock(where) from exc
        return cls.of(said, where)

    @classmethod
    def of(cls, said: Any, where: str) -> Lock:  # noqa: ANN401 - JSON in
        """The same from what a file says.

        Raises:
            InvalidRequest: it says nothing of the kind.
        """
        try:
            return cls(str(said["python"])[:20], tuple(map(_locked, said["packages"][:_LOCKED_MOST])))
        except (ValueError, LookupError, TypeError) as exc:
            raise _no_lock(where) from exc

    def written(self) -> bytes:
        """As a file."""
        packages = [{"name": one.name, "version": one.version, "sha256": one.sha256} for one in self.packages]
        return json.dumps({"python": self.python, "packages": packages}, indent=1).encode() + b"\n"

    @property
    def requirements(self) -> list[str]:
        """Lines for pip, which asks for all hashes or for none."""
        hashed = all(package.sha256 for package in self.packages)
        return [f"{one.name}=={one.version}" + f" --hash=sha256:{one.sha256}" * hashed for one in self.packages]


def _no_lock(where: str) -> InvalidRequest:
    return InvalidRequest(f"{where} is no lock of packages: name a file that `install` or `rebuild` has written.")


def _locked(said: Any) -> Package:  # noqa: ANN401 - JSON in
    name, version, digest = said["name"], said["version"], said.get("sha256")
    if not (_EXACT.fullmatch(name) and _EXACT_VERSION.fullmatch(version) and (digest is None or _DIGEST.fullmatch(digest))):
        raise ValueError
    return Package(name, version, digest)
