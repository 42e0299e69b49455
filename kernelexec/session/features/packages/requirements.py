"""Checked requirements, and the lock of installed packages in the format of PEP 751."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
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
#: A key in quotes or without, then keys with dots between them. ``long`` are more of them than any lock has. Strings and
#: comments are tokens, so that nothing in them is taken for keys; an open string ends with its line.
_KEY = r"""(?:"(?:[^"\\\n]++|\\[^\n])*+"?+|'[^'\n]*+'?+|[\w-]++)"""
_MORE_KEYS = rf"(?:[ \t]*+\.[ \t]*+{_KEY})"
_TOML_TOKEN = re.compile(
    r'''"""(?:[^"\\]++|\\[\s\S]|"{1,2}(?!"))*+"{0,5}|#[^\n]*+'''
    r"""|'''(?:[^']++|'{1,2}(?!'))*+'{0,5}"""
    rf"|(?P<long>{_KEY}{_MORE_KEYS}{{10}})|{_KEY}{_MORE_KEYS}*+"
)
_WHEEL, _FILE = ".whl", ".txt"
_FILE_OPTION = re.compile(r"(?:-r|--requirement)[ =]?\s*(?P<path>\S.*)")
_TOOL = "kernelexec"


def check_requirements(packages: Iterable[object], read: Callable[[str], str]) -> tuple[str, ...]:
    """Return 1 to 200 requirements, or raise ``InvalidRequest``: names with versions, or paths of wheels.

    Packages are requirements, iterables of requirements, or files with a requirement in each line, read by ``read``.
    """
    requirements: list[object] = []
    for each in packages:
        listed = list(each) if isinstance(each, Iterable) and not isinstance(each, str | bytes | os.PathLike) else [each]
        for requirement in listed:
            path = find_requirements_file(requirement)
            requirements += [requirement] if path is None else _list_lines(path, read(path))
    if not 1 <= len(requirements) <= REQUIREMENTS_MAX:
        raise InvalidRequest(f"{len(requirements)} packages: there must be 1 to {REQUIREMENTS_MAX}.")
    return tuple(map(_check_requirement, requirements))


def find_requirements_file(requirement: object) -> str | None:
    """Return the path of a file of requirements, from pip's option or by the ending; None for another requirement."""
    path = os.fspath(requirement) if isinstance(requirement, str | os.PathLike) else ""
    if not isinstance(path, str) or not path.isprintable():
        return None
    path = path.strip()
    if option := _FILE_OPTION.fullmatch(path):
        return option["path"].strip("'\"")
    return path if path.endswith(_FILE) and not path.startswith("-") else None


def _list_lines(path: str, text: str) -> list[str]:
    """Return the requirements of a file, without comments. Options of pip are refused, as in other requirements."""
    lines = (re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip() for line in text.splitlines())
    requirements = [line for line in lines if line]
    for line in requirements:
        if line.startswith("-") or line.endswith("\\"):
            message = f"{path} has the line {line!r:.200}: each must be a name with versions, or the path of a wheel."
            raise InvalidRequest(message)
    return requirements


def is_wheel(requirement: str) -> bool:
    """Return whether a requirement is the path of a wheel."""
    return requirement.endswith(_WHEEL)


def normalize_name(name: str) -> str:
    """Return a package's name in its one form of PEP 503."""
    return canonicalize_name(name)


def _check_requirement(requirement: object) -> str:
    text = os.fspath(requirement) if isinstance(requirement, str | os.PathLike) else requirement
    if isinstance(text, str):
        text = text.strip()
        if is_wheel(text) and not text.startswith("-") and text.isprintable():
            return text
        if _is_name_with_versions(text):
            return " ".join(text.split())
    raise InvalidRequest(f"{requirement!r:.200} must be a name with versions, such as 'numpy>=2,<3', or the path of a wheel.")


def _is_name_with_versions(text: str) -> bool:
    """Return whether a text is a name with versions and without an address, which pip would download."""
    try:
        return len(text) <= _REQUIREMENT_CHARS and text.isascii() and Requirement(text).url is None
    except InvalidRequirement:
        return False


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """An installed package and its archive: the address or the file name, and the known hashes."""

    name: str
    version: str
    archive: str = ""
    sha256: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if a part is malformed, or could be an option of pip."""
        canonicalize_name(self.name, validate=True)
        Version(self.version)  # which accepts surrounding space, and digits of all scripts
        text = f"{self.name}=={self.version}"
        if not text.isascii() or text.split() != [text] or not all(map(_DIGEST.fullmatch, self.sha256)):
            raise ValueError(f"{self!r:.300} is malformed.")

    @property
    def key(self) -> str:
        """The normalized name, for comparisons."""
        return canonicalize_name(self.name)

    def has_version(self, version: str) -> bool:
        """Return whether the package has a version, in any spelling."""
        return Version(self.version) == Version(version)

    @property
    def package(self) -> Package:
        """The package for the caller's result."""
        return Package(self.name, self.version, self.sha256[0] if self.sha256 else None)

    @property
    def pip_line(self) -> str:
        """The line for pip, without hashes."""
        return f"{self.key}=={self.version}"

    def to_toml(self) -> str | None:
        """Return the package as a table of a lock, or None if too little is known of the archive for the standard."""
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
    """The exact packages of a virtual environment, and the version of its Python, which locks of other tools omit."""

    python: str
    packages: tuple[LockedPackage, ...]

    @classmethod
    def parse(cls, text: bytes, path: str) -> PackageLock:
        """Return the lock in a file, possibly written by cells; raise ``InvalidRequest`` unless it is for one environment."""
        try:
            document = _parse_toml(text.decode())
            lock = Pylock.from_dict(document)
            tool_table: Mapping[str, Any] = (lock.tool or {}).get(_TOOL, {})
            unhashed = [LockedPackage(name, version) for name, version in tool_table.get("unhashed", {}).items()]
            packages = (*map(_convert_package, lock.packages), *unhashed)
            return cls(str(tool_table.get("python", ""))[:_VERSION_CHARS], packages[:_LOCKED_MAX])
        except (PylockValidationError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
            raise InvalidRequest(
                f"{path} must be a lock of packages: a pylock.toml of one environment, as `install` and `rebuild` write it, "
                "in which each package has a version and a wheel or a source archive, and none has a marker."
            ) from exc

    def to_toml(self) -> bytes:
        """Return the content of the lock file. Packages with an unknown archive are in the table of this tool."""
        entries = {package.key: package.to_toml() for package in self.packages}
        unhashed = (package for package in self.packages if entries[package.key] is None)
        versions = "".join(f'"{package.key}" = "{package.version}"\n' for package in unhashed)
        header = f'lock-version = "1.0"\ncreated-by = "{_TOOL}"\n' + "packages = []\n" * (not any(entries.values()))
        tool = f"\n[tool.{_TOOL}]\npython = {json.dumps(self.python)}\n\n[tool.{_TOOL}.unhashed]\n{versions}"
        return "".join((header, *filter(None, entries.values()), tool)).encode()

    @property
    def pip_lines(self) -> list[str]:
        """The lines for pip, which accepts hashes of all packages or of none."""
        if not all(package.sha256 for package in self.packages):
            return [package.pip_line for package in self.packages]
        return [
            f"{package.pip_line} {' '.join(f'--hash=sha256:{digest}' for digest in package.sha256)}"
            for package in self.packages
        ]


def _parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML text; ``ValueError`` for a key of many parts, since ``tomllib`` is quadratic."""
    if any(token["long"] is not None for token in _TOML_TOKEN.finditer(text)):
        raise ValueError("A key has too many parts.")
    return tomllib.loads(text)


def _convert_package(package: PylockPackage) -> LockedPackage:
    archives: list[PackageWheel | PackageSdist] = [*(package.wheels or ()), *([package.sdist] if package.sdist else [])]
    if package.version is None or package.marker is not None or not archives:
        raise ValueError(package.name)
    digests = [archive.hashes["sha256"] for archive in archives]
    first = archives[0]
    return LockedPackage(package.name, str(package.version), first.url or first.path or "", tuple(digests))
