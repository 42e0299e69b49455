"""The images that can be built, and the files that each is built from; wheels for one without network, and certificates."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import platform as machine
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernelexec.config.container import NAMES, OWNER, REFERENCE
from kernelexec.errors import ImageBuildFailed, InvalidRequest, did_you_mean

_PURPOSE = re.compile(r"\A# kernelexec/\S+: (.+)")
_BASE = re.compile(r"^ARG BASE_IMAGE=(\S+)", re.MULTILINE)
_BARE = re.compile(r"setup/system\.sh(?: \$\{DEBIAN_PACKAGES\})?\s*$", re.MULTILINE)
_PACKAGES = re.compile(r'^ARG DEBIAN_PACKAGES="?[^"\s]', re.MULTILINE)
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
_ARCHITECTURES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
#: The C library of Debian 12: wheels for it or for an older one run in all base images of the documentation.
_GLIBC = 36
_OLD = ("manylinux2014", "manylinux2010", "manylinux1")
_BASE_PYTHON = re.compile(r"python:(?P<version>3\.\d+)")
_VERSION = re.compile(r"3\.\d+(\.\d+)?")
_SAID_CHARS = 2000
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SUFFIXES = {".crt", ".pem", ".cer"}
_DER = b"\x30\x82"
#: Directories for authorities of administrators: Debian, Fedora, Arch, SUSE.
_ANCHORS = (
    "/usr/local/share/ca-certificates",
    "/etc/pki/ca-trust/source/anchors",
    "/etc/ca-certificates/trust-source/anchors",
    "/etc/pki/trust/anchors",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The files of one image by their names in the build's context, and the image's name."""

    tag: str
    """The image's default name."""
    files: Files
    """All files that ``docker build`` needs."""

    @property
    def purpose(self) -> str:
        """Return the purpose of the image from the first line of its Dockerfile; empty if there is none."""
        return self._find(_PURPOSE)

    @property
    def bare(self) -> bool:
        """Return whether the image needs no Debian packages besides those of every image."""
        return bool(_BARE.search(self._dockerfile)) and not _PACKAGES.search(self._dockerfile)

    @property
    def base_image(self) -> str:
        """Return the default base image; empty if the Dockerfile names none."""
        return self._find(_BASE)

    @property
    def digest(self) -> str:
        """Return a digest of all files, which differs between two versions of a recipe."""
        parts = (part for name, content in sorted(self.files.items()) for part in (name.encode(), _bytes(content)))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def _find(self, pattern: re.Pattern[str]) -> str:
        match = pattern.search(self._dockerfile)
        return match[1] if match else ""

    @property
    def _dockerfile(self) -> str:
        return _bytes(self.files["Dockerfile"]).decode()


def recipe(name: str) -> Recipe:
    """Return the recipe of that name, or of a directory that ``write_template`` wrote: a path with a slash in it.

    Raises:
        InvalidRequest: there is no such recipe.
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
    """Return a sentence that says how to get a missing image."""
    reference = REFERENCE.fullmatch(image)
    if reference and reference["name"] in NAMES:
        tag = f" --tag {image}" if reference["tag"] not in (None, ":latest") else ""
        sudo = " --sudo" if reference["sudo"] else ""
        return f"`kernelexec image build {reference['name']}{sudo}{tag}` makes it."
    close = did_you_mean(reference["name"], NAMES) if reference else ""
    if reference:
        return f"None of that name can be built{close}: `kernelexec image list` shows which can."
    return f"`docker pull {image}` gets it, if a registry has it; `kernelexec image build agent` makes one of ours."


def pack_files(files: Files) -> IO[bytes]:
    """Return the files as a tar archive, such as the context of a build: the same bytes for the same files; to be closed."""
    context = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
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
    """Write the files of a recipe for the user to change; return their paths.

    Raises:
        InvalidRequest: there is no such recipe, or one of the files exists.
    """
    files = recipe(name).files
    if existing := [str(path) for name in files if (path := directory / name).exists()]:
        raise InvalidRequest(f"{existing[0]} is there already: name a directory that is not, by --output.")
    return write_files(files, directory)


def write_files(files: Files, directory: Path) -> list[Path]:
    """Write files into a directory; return their paths."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(content))
    return sorted(directory / name for name in files)


def wheels_in(directory: Path) -> dict[str, Path]:
    """Return the wheels of a directory as files of the context.

    Raises:
        InvalidRequest: the directory holds no wheel.
    """
    wheels = {f"wheels/{path.name}": path for path in sorted(directory.glob("*.whl"))}
    if not wheels:
        raise InvalidRequest(f"{directory} holds no wheel (*.whl): `kernelexec image wheels NAME -o {directory}` fetches them.")
    return wheels


def _dockerfile(home: Path, name: str) -> bytes:
    """Return the Dockerfile of an image for kernels, with its arguments filled in: `docker build` alone can build it too."""
    purpose, packages = _KERNEL_IMAGES[name]
    _, _, text = (home / "Dockerfile").read_text(encoding="utf-8").partition("\n")
    text = text.replace("ARG IMAGE=NAME", f"ARG IMAGE={name}")
    text = text.replace('ARG DEBIAN_PACKAGES=""', f'ARG DEBIAN_PACKAGES="{packages}"')
    return f"# kernelexec/{name}: {purpose}\n{text}".encode()


def _bytes(content: bytes | Path) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _home() -> Path:
    """Return the directory of the Dockerfiles: in the installed package, or next to it in a checkout."""
    inside = PACKAGE_DIRECTORY / "images"
    return inside if inside.is_dir() else PACKAGE_DIRECTORY.parent / "images"


def own_wheel(images: Path) -> dict[str, bytes]:
    """Return the wheel by its file name: the same bytes for the same files.

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
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content)
    return {f"{_PACKAGE}-{installed.version}-py3-none-any.whl": target.getvalue()}


def _package_files(directory: Path) -> dict[str, Path]:
    paths = {path.relative_to(directory): path for path in sorted(directory.rglob("*")) if path.is_file()}
    return {name.as_posix(): path for name, path in paths.items() if "__pycache__" not in name.parts}


def fetch_wheels(recipe: Recipe, directory: Path, *, python: str | None = None, platform: str | None = None) -> list[Path]:
    """Download all wheels of a recipe into a directory by pip; return the paths of all wheels there.

    Raises:
        InvalidRequest: the Python version is malformed, or the platform has no wheels.
        ImageBuildFailed: pip failed; the message ends with its output.
    """
    with tempfile.TemporaryDirectory(prefix="kx-wheels-") as lists:
        write_files({name: recipe.files[name] for name in ("requirements.txt", "pins.txt")}, Path(lists))
        directory.mkdir(parents=True, exist_ok=True)
        command = download_command(Path(lists), directory, python=python or python_of(recipe), platform=platform)
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if ended.returncode:
        reason = ended.stdout.strip()[-_SAID_CHARS:]
        raise ImageBuildFailed(f"pip did not fetch the wheels:\n{reason}")
    return sorted(directory.glob("*.whl"))


def python_of(recipe: Recipe) -> str:
    """Return the Python version of the recipe's base image; that of this process if the name does not say."""
    match = _BASE_PYTHON.search(recipe.base_image)
    return match["version"] if match else "{}.{}".format(*sys.version_info[:2])


def download_command(lists: Path, directory: Path, *, python: str, platform: str | None) -> list[str]:
    """Return the command of pip, with every platform tag that a fitting wheel may have.

    Raises:
        InvalidRequest: the Python version is malformed, or the platform has no wheels.
    """
    if not _VERSION.fullmatch(python):
        raise InvalidRequest(
            f"{python!r} must be a version of Python, such as 3.11 or 3.11.2: `python3 --version` in the base image prints it."
        )
    target = (platform or f"linux/{machine.machine()}").lower()
    architecture = _ARCHITECTURES.get(target.removeprefix("linux/"))
    if not architecture:
        raise InvalidRequest(f"There are no wheels for {target}: linux/amd64 and linux/arm64 have them.")
    names = (*(f"manylinux_2_{minor}" for minor in range(_GLIBC, 4, -1)), *_OLD)
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--implementation", "cp", "--python-version", python),
        *(word for name in names for word in ("--platform", f"{name}_{architecture}")),
        *("--dest", str(directory), "-r", str(lists / "requirements.txt"), "-c", str(lists / "pins.txt")),
    ]


def authorities(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the certificates in files and directories as files of a build's context.

    Other content of the files, such as keys, is left out.

    Raises:
        InvalidRequest: a file or directory is missing, or contains no certificate.
    """
    certificates: list[bytes] = []
    for path in paths:
        if not path.exists():
            raise InvalidRequest(f"There is no file or directory {path} with certificate authorities.")
        if not (present := _read_certificates(path)):
            forms = "a file in PEM or DER form is needed, in a directory as *.crt, *.pem or *.cer"
            raise InvalidRequest(f"{path} holds no certificate: {forms}.")
        certificates += present
    return _as_files(certificates)


def own_authorities(anchors: Iterable[Path] | None = None) -> dict[str, bytes]:
    """Return the authorities that were added to this machine, or all that it trusts if none were."""
    directories = map(Path, _ANCHORS) if anchors is None else anchors
    if added := [pem for directory in directories if directory.is_dir() for pem in _read_certificates(directory)]:
        return _as_files(added)
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return _as_files(ssl.DER_cert_to_PEM_cert(certificate).encode() for certificate in trusted)


def _read_certificates(path: Path) -> list[bytes]:
    """Return the certificates of a file, or of all such files in a directory, in PEM form."""
    inner = sorted(path.rglob("*")) if path.is_dir() else []
    files = [file for file in inner if file.suffix in _SUFFIXES and file.is_file()] if path.is_dir() else [path]
    certificates: list[bytes] = []
    for content in (file.read_bytes() for file in files):
        is_der = content.startswith(_DER)
        certificates += [ssl.DER_cert_to_PEM_cert(content).encode()] if is_der else [f + b"\n" for f in _PEM.findall(content)]
    return certificates


def _as_files(certificates: Iterable[bytes]) -> dict[str, bytes]:
    """Return one file for each certificate, as ``update-ca-certificates`` needs it; each once."""
    return {f"extra-ca/{hashlib.sha256(pem).hexdigest()[:16]}.crt": pem for pem in certificates}
