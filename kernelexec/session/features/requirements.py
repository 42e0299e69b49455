"""Requirements that may be installed, and the lock of installed packages in the standard's format (PEP 751)."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.pylock import Package as PylockPackage
from packaging.pylock import PackageSdist, PackageWheel, Pylock, PylockValidationError
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from kernelexec.errors import InvalidRequest
from kernelexec.results import Package

#: The number of requirements in one call at most.
REQUIREMENTS_MAX = 200
_LOCKED_MAX = 5000
_REQUIREMENT_CHARS, _VERSION_CHARS = 500, 20
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WHEEL = ".whl"
_TOOL = "kernelexec"


def checked(packages: object) -> tuple[str, ...]:
    """Return requirements as text; a single one need not be in a list.

    Raises:
        InvalidRequest: there is none, there are too many, or one is neither a name with versions nor the path of a wheel.
    """
    listed = [packages] if isinstance(packages, str | os.PathLike) else packages
    requirements = list(listed) if isinstance(listed, Iterable) and not isinstance(listed, bytes) else [listed]
    if not 1 <= len(requirements) <= REQUIREMENTS_MAX:
        message = f"{len(requirements)} packages are named: name 1 to {REQUIREMENTS_MAX}."
        raise InvalidRequest(message)
    return tuple(map(_checked, requirements))


def is_wheel(requirement: str) -> bool:
    """Return whether a requirement is the path of a wheel."""
    return requirement.endswith(_WHEEL)


def _checked(requirement: object) -> str:
    text = os.fspath(requirement) if isinstance(requirement, str | os.PathLike) else requirement
    if isinstance(text, str):
        text = text.strip()
        if is_wheel(text) and not text.startswith("-") and text.isprintable():
            return text
        if _is_named(text):
            return " ".join(text.split())
    message = f"{requirement!r:.200} is no requirement: write a name with versions, as 'numpy>=2,<3', or the path of a wheel."
    raise InvalidRequest(message)


def _is_named(text: str) -> bool:
    """Return whether a text is a name with versions; an address, which pip would fetch by itself, is none."""
    try:
        return len(text) <= _REQUIREMENT_CHARS and text.isascii() and Requirement(text).url is None
    except InvalidRequirement:
        return False


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """An installed package and its archive: the address or the file name, and hashes, none where they are not known."""

    name: str
    version: str
    archive: str = ""
    sha256: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that are malformed, or that pip could take for options.

        Raises:
            ValueError: one is.
        """
        canonicalize_name(self.name, validate=True)
        Version(self.version)  # it takes space around the version, and digits of all scripts
        text = f"{self.name}=={self.version}"
        if not text.isascii() or text.split() != [text] or not all(map(_DIGEST.fullmatch, self.sha256)):
            message = f"{self!r:.300} is malformed."
            raise ValueError(message)

    @property
    def key(self) -> str:
        """The name in its standard form, by which packages are compared."""
        return canonicalize_name(self.name)

    def has_version(self, version: str) -> bool:
        """Return whether it is of a version, however that is written."""
        return Version(self.version) == Version(version)

    @property
    def result(self) -> Package:
        """The package as callers get it."""
        return Package(self.name, self.version, self.sha256[0] if self.sha256 else None)

    @property
    def requirement(self) -> str:
        """A line for pip without hashes."""
        return f"{self.key}=={self.version}"

    def entry(self) -> str | None:
        """Return the package as a table of a lock, None if its archive is not known well enough for the standard."""
        if not self.sha256 or not self.archive.isascii() or not self.archive.isprintable():
            return None
        file = self.archive.rpartition("/")[2]
        kind = "wheels" if is_wheel(file) else "sdist"
        try:
            parsed = parse_wheel_filename(file) if is_wheel(file) else parse_sdist_filename(file)
        except ValueError:
            return None
        if parsed[:2] != (self.key, Version(self.version)):
            return None
        location = f"{'url' if '://' in self.archive else 'path'} = {json.dumps(self.archive)}"
        source = f'{{name = {json.dumps(file)}, {location}, hashes = {{sha256 = "{self.sha256[0]}"}}}}'
        source = f"[{source}]" if kind == "wheels" else source
        return f'\n[[packages]]\nname = "{self.key}"\nversion = "{self.version}"\n{kind} = {source}\n'


@dataclass(frozen=True, slots=True)
class PackageLock:
    """The exact packages of a virtual environment, and the version of its Python, which other tools' locks do not name."""

    python: str
    packages: tuple[LockedPackage, ...]

    @classmethod
    def read(cls, text: bytes, path: str) -> PackageLock:
        """Return a lock from a file, which cells may have written.

        Raises:
            InvalidRequest: it is no lock for one environment, by name and version.
        """
        try:
            document = tomllib.loads(text.decode())
            lock = Pylock.from_dict(document)
            own: Mapping[str, Any] = (lock.tool or {}).get(_TOOL, {})
            unhashed = [LockedPackage(name, version) for name, version in own.get("unhashed", {}).items()]
            packages = (*map(_locked, lock.packages), *unhashed)
            return cls(str(own.get("python", ""))[:_VERSION_CHARS], packages[:_LOCKED_MAX])
        except (PylockValidationError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            message = (
                f"{path} is no lock of packages: name a pylock.toml of one environment, as `install` and `rebuild` write it, "
                "in which each package has a version and a wheel or a source archive, and none has a marker."
            )
            raise InvalidRequest(message) from exc

    def written(self) -> bytes:
        """Return the lock as a file. Packages whose archive is not known are in the table of this tool."""
        entries = {package.key: package.entry() for package in self.packages}
        unhashed = (package for package in self.packages if entries[package.key] is None)
        versions = "".join(f'"{package.key}" = "{package.version}"\n' for package in unhashed)
        head = f'lock-version = "1.0"\ncreated-by = "{_TOOL}"\n' + "packages = []\n" * (not any(entries.values()))
        tool = f"\n[tool.{_TOOL}]\npython = {json.dumps(self.python)}\n\n[tool.{_TOOL}.unhashed]\n{versions}"
        return "".join((head, *filter(None, entries.values()), tool)).encode()

    @property
    def requirements(self) -> list[str]:
        """Lines for pip, which takes hashes of all packages or of none."""
        if not all(package.sha256 for package in self.packages):
            return [package.requirement for package in self.packages]
        return [
            f"{package.requirement} {' '.join(f'--hash=sha256:{digest}' for digest in package.sha256)}"
            for package in self.packages
        ]


def _locked(package: PylockPackage) -> LockedPackage:
    archives: list[PackageWheel | PackageSdist] = [*(package.wheels or ()), *([package.sdist] if package.sdist else [])]
    if package.version is None or package.marker is not None or not archives:
        raise ValueError(package.name)
    digests = [archive.hashes["sha256"] for archive in archives]
    first = archives[0]
    return LockedPackage(package.name, str(package.version), first.url or first.path or "", tuple(digests))
