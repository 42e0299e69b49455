"""The recipes of images with their files, and further wheels and certificates of the caller."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernelexec.config.container import NAMES, OWNER, REFERENCE
from kernelexec.errors import InvalidRequest, did_you_mean

_SHARED = ("pins.txt", "setup/python.sh", "setup/system.sh", "extra-ca/README.md", "wheels/README.md")
#: The image that kernelexec itself runs in: its files include the package, and a compose file that starts it.
_SERVER, _COMPOSE = "server", "compose.yaml"
#: Of each image for kernels: its purpose, and the Debian packages besides those that every image needs.
_KERNEL_IMAGES = {
    "minimal": ("Python, ipykernel and bash.", ""),
    "data-science": (
        "numpy, pandas, polars, scipy, statsmodels, scikit-learn, matplotlib, seaborn, plotly, DuckDB, SQLAlchemy, and git.",
        "fonts-wqy-microhei git",
    ),
    "web": ("node and npm, clients and servers of HTTP, and what reads HTML.", "curl git"),
    "ml": ("models on processors alone: scikit-learn, XGBoost, statsmodels, ONNX.", ""),
    "agent": (
        "what an agent needs most: Python with a data stack, git, node, and a compiler for C and C++.",
        "curl file g++ gcc git jq less make patch procps ripgrep tree unzip xz-utils zip",
    ),
}

Files = Mapping[str, bytes | Path]
_PACKAGE, PACKAGE_DIRECTORY = "kernelexec", Path(__file__).resolve().parents[2]
_WHEEL = b"Wheel-Version: 1.0\nGenerator: kernelexec\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: The oldest time of a zip file, so that the same files always make the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The files of an image by their names in the build's context, and the image's name."""

    tag: str
    """The image's default name."""
    files: Files
    """All files that ``docker build`` needs."""

    @property
    def purpose(self) -> str:
        """Return the purpose of an image of ours, from the first line of the Dockerfile after the name."""
        return _bytes(self.files["Dockerfile"]).decode().partition("\n")[0].partition(": ")[2]

    @property
    def digest(self) -> str:
        """Return a digest of all files, which differs between two versions of a recipe."""
        parts = (part for name, content in sorted(self.files.items()) for part in (name.encode(), _bytes(content)))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def recipe(name: str) -> Recipe:
    """Return the recipe of a name, or of a directory of ``write_template``: a path with a slash.

    Raises:
        InvalidRequest: the recipe does not exist.
    """
    if name in NAMES:
        home = _home()
        files: dict[str, bytes | Path] = {file: home / file for file in _SHARED}
        files["requirements.txt"] = home / "requirements" / f"{name}.txt"
        if name != _SERVER:
            return Recipe(f"{OWNER}/{name}", {**files, "Dockerfile": _dockerfile(home, name)})
        files |= {f"package/{wheel}": content for wheel, content in own_wheel(home).items()}
        own = {"Dockerfile": home / f"Dockerfile.{_SERVER}", _COMPOSE: home / _SERVER / _COMPOSE}
        return Recipe(f"{OWNER}/{name}", {**files, **own})
    if "/" not in name:
        raise InvalidRequest(
            f"There is no image {name!r} to build{did_you_mean(name, NAMES)}: {', '.join(NAMES)}, or a directory as ./{name}."
        )
    directory = Path(name)
    if not (directory / "Dockerfile").is_file():
        raise InvalidRequest(f"{directory} holds no Dockerfile. `kernelexec image template minimal -o {directory}` writes one.")
    files = {str(path.relative_to(directory)): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return Recipe(f"{OWNER}/{directory.resolve().name.lower()}", files)


def how_to_get(image: str) -> str:
    """Return a sentence on how to get a missing image."""
    reference = REFERENCE.fullmatch(image)
    if reference is None:
        return f"`docker pull {image}` gets it, if a registry has it; `kernelexec image build agent` makes one of ours."
    name = reference["name"]
    if name not in NAMES:
        return f"None of that name can be built{did_you_mean(name, NAMES)}: `kernelexec image list` shows which can."
    tag = f" --tag {image}" if reference["tag"] not in (None, ":latest") else ""
    return f"`kernelexec image build {name}{' --sudo' if reference['sudo'] else ''}{tag}` makes it."


def pack_files(files: Files) -> IO[bytes]:
    """Return the files as a tar archive, such as the context of a build: the same bytes for the same files; to be closed."""
    context = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)  # without a time or an owner: equal files are equal for the engine's cache
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                entry.size = source.seek(0, io.SEEK_END)
                source.seek(0)
                tar.addfile(entry, source)
    context.seek(0)
    return context


def write_template(name: str, directory: Path) -> list[Path]:
    """Write the files of a recipe for the user to change; return their paths.

    Raises:
        InvalidRequest: the recipe does not exist, or a file exists already.
    """
    files = {directory / name: content for name, content in sorted(recipe(name).files.items())}
    if existing := [path for path in files if path.exists()]:
        raise InvalidRequest(f"{existing[0]} is there already: name a directory that is not, by --output.")
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(content))
    return list(files)


def wheels_in(directory: Path) -> dict[str, Path]:
    """Return the wheels of a directory as files of the context.

    Raises:
        InvalidRequest: the directory holds no wheel.
    """
    wheels = {f"wheels/{path.name}": path for path in sorted(directory.glob("*.whl"))}
    if not wheels:
        raise InvalidRequest(
            f"{directory} holds no wheel (*.whl): `pip download --dest {directory}` fetches them, by the requirements.txt and"
            " the pins.txt of `kernelexec image template`."
        )
    return wheels


def authorities(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the certificates in files, and in the ``*.crt`` files of directories, as files of the context.

    Each certificate gets its own file, as ``update-ca-certificates`` requires. Other content, such as keys, is left out.

    Raises:
        InvalidRequest: a file or directory is missing, or contains no certificate.
    """
    files: dict[str, bytes] = {}
    for path in paths:
        sources = [file for file in (path, *sorted(path.rglob("*.crt"))) if file.is_file()]
        certificates = [pem + b"\n" for source in sources for pem in _PEM.findall(source.read_bytes())]
        if not certificates:
            raise InvalidRequest(
                f"{path} holds no certificate: it must be a file in PEM form, or a directory of such *.crt files."
            )
        files |= {f"extra-ca/{hashlib.sha256(pem).hexdigest()[:16]}.crt": pem for pem in certificates}
    return files


def _dockerfile(home: Path, name: str) -> bytes:
    """Return the Dockerfile of an image for kernels, with its arguments filled in for `docker build` alone."""
    purpose, packages = _KERNEL_IMAGES[name]
    _, _, text = (home / "Dockerfile").read_text(encoding="utf-8").partition("\n")
    text = text.replace("ARG IMAGE=NAME", f"ARG IMAGE={name}")
    text = text.replace('ARG DEBIAN_PACKAGES=""', f'ARG DEBIAN_PACKAGES="{packages}"')
    return f"# kernelexec/{name}: {purpose}\n{text}".encode()


def _bytes(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _home() -> Path:
    """Return the directory of the Dockerfiles: in the installed package, or in a checkout next to the package."""
    inside = PACKAGE_DIRECTORY / "images"
    return inside if inside.is_dir() else PACKAGE_DIRECTORY.parent / "images"


def own_wheel(images: Path) -> dict[str, bytes]:
    """Return this package as a wheel by its file name: the same bytes for the same files.

    Args:
        images: the directory of the recipes of images, which belong to the package.
    """
    installed = importlib.metadata.distribution(_PACKAGE)
    about = f"{_PACKAGE}-{installed.version}.dist-info"
    files = {f"{_PACKAGE}/{name}": path.read_bytes() for name, path in _package_files(PACKAGE_DIRECTORY).items()}
    files |= {f"{_PACKAGE}/images/{name}": path.read_bytes() for name, path in _package_files(images).items()}
    files |= {f"{about}/{name}": (installed.read_text(name) or "").encode() for name in ("METADATA", "entry_points.txt")}
    files[f"{about}/WHEEL"] = _WHEEL
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=") for name, content in files.items()}
    lines = [f"{name},sha256={digest.decode()},{len(files[name])}" for name, digest in digests.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as wheel:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16  # the mode of a file is in the upper half
            wheel.writestr(entry, content)
    return {f"{_PACKAGE}-{installed.version}-py3-none-any.whl": target.getvalue()}


def _package_files(directory: Path) -> dict[str, Path]:
    paths = {path.relative_to(directory): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {name.as_posix(): path for name, path in paths.items() if "__pycache__" not in name.parts}
