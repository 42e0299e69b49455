"""What images can be built, and the files that each is built from."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernelexec.config.images import NAMES, OWNER, REFERENCE
from kernelexec.docker.images.own_wheel import own_wheel
from kernelexec.errors import InvalidRequest, nearest

_PURPOSE = re.compile(r"# kernelexec/\S+: (?P<purpose>.+)")
_BASE = re.compile(r"^ARG BASE_IMAGE=(?P<base>\S+)", re.MULTILINE)
_BARE = re.compile(r"setup/system\.sh\s*$", re.MULTILINE)
_SHARED = ("pins.txt", "setup/python.sh", "setup/system.sh", "extra-ca/README.md", "wheels/README.md")
_OWN = ("Dockerfile", "requirements.txt")
#: The image that kernelexec itself runs in: its files have how to start it, and the package.
_SERVER, _COMPOSE = "server", "compose.yaml"

Files = Mapping[str, bytes | Path]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: its files by their names in the build's context, and what it is called."""

    tag: str
    """What the image is called unless told otherwise."""
    files: Files
    """All that ``docker build`` needs."""

    @property
    def purpose(self) -> str:
        """What the image is for, as its Dockerfile says in the first line; empty where it does not."""
        found = _PURPOSE.match(self._dockerfile)
        return found["purpose"] if found else ""

    @property
    def bare(self) -> bool:
        """Whether it asks for no Debian package besides those that every image needs."""
        return bool(_BARE.search(self._dockerfile))

    @property
    def base_image(self) -> str:
        """What it builds upon unless told otherwise; empty where the Dockerfile does not say it."""
        found = _BASE.search(self._dockerfile)
        return found["base"] if found else ""

    @property
    def digest(self) -> str:
        """Tells this recipe from an earlier one of that name."""
        parts = (part for name, content in sorted(self.files.items()) for part in (name.encode(), _bytes(content)))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    @property
    def _dockerfile(self) -> str:
        return _bytes(self.files["Dockerfile"]).decode()


def recipe(name: str) -> Recipe:
    """The recipe of that name, or that of a directory which ``write_template`` made: a path with a slash in it.

    Raises:
        InvalidRequest: there is none.
    """
    if name in NAMES:
        home = _home()
        own = {file: home / name / file for file in _OWN}
        files: Files = own | {file: home / file for file in _SHARED}
        return Recipe(f"{OWNER}/{name}", files if name != _SERVER else {**files, **_server(home)})
    if "/" not in name:
        message = f"There is no image {name!r} to build{nearest(name, NAMES)}: {', '.join(NAMES)}, or a directory as ./{name}."
        raise InvalidRequest(message)
    directory = Path(name)
    if not (directory / "Dockerfile").is_file():
        message = f"{directory} holds no Dockerfile. `kernelexec image template minimal -o {directory}` writes one."
        raise InvalidRequest(message)
    files = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return Recipe(f"{OWNER}/{directory.resolve().name.lower()}", files)


def how_to_get(image: str) -> str:
    """What to do about an image that is not there, in a sentence."""
    found = REFERENCE.fullmatch(image)
    if found and found["name"] in NAMES:
        tag = f" --tag {image}" if found["tag"] not in (None, ":latest") else ""
        sudo = " --sudo" if found["sudo"] else ""
        return f"`kernelexec image build {found['name']}{sudo}{tag}` makes it."
    close = nearest(found["name"], NAMES) if found else ""
    if found:
        return f"None of that name can be built{close}: `kernelexec image list` shows which can."
    return f"`docker pull {image}` gets it, if a registry has it; `kernelexec image build agent` makes one of ours."


def packed(files: Files) -> IO[bytes]:
    """The files as the context of a build, the same bytes for the same files; whoever gets it closes it."""
    context = tempfile.TemporaryFile()  # noqa: SIM115 - it is handed out
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                entry.size = source.seek(0, io.SEEK_END)
                source.seek(0)
                tar.addfile(entry, source)
    context.seek(0)
    return context


def write_template(name: str, directory: Path) -> list[Path]:
    """Write what the image is built from, for people to change; the paths that were written.

    Raises:
        InvalidRequest: there is no such image, or there are such files already.
    """
    found = recipe(name)
    if there := [str(path) for name in found.files if (path := directory / name).exists()]:
        message = f"{there[0]} is there already: name a directory that is not, by --output."
        raise InvalidRequest(message)
    return write_files(found.files, directory)


def write_files(files: Files, directory: Path) -> list[Path]:
    """Write these files there; their paths."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(content))
    return sorted(directory / name for name in files)


def wheels_in(directory: Path) -> dict[str, Path]:
    """The wheels of a directory, as files of the context.

    Raises:
        InvalidRequest: it holds none.
    """
    found = {f"wheels/{path.name}": path for path in sorted(directory.glob("*.whl"))}
    if not found:
        message = f"{directory} holds no wheel (*.whl): `kernelexec image wheels NAME -o {directory}` fetches them."
        raise InvalidRequest(message)
    return found


def unpinned(lines: Iterable[str]) -> list[str]:
    """The lines of a list of packages that do not say one exact version; comments and empty lines aside."""
    said = [line.split("#")[0].strip() for line in lines]
    return [line for line in said if line and not re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][\w.+!-]*", line)]


def _server(home: Path) -> Files:
    package = {f"package/{name}": content for name, content in own_wheel(home).items()}
    return {**package, _COMPOSE: home / _SERVER / _COMPOSE}


def _bytes(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _home() -> Path:
    """Where the Dockerfiles are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "images"
    return inside if inside.is_dir() else package.parent / "images"
