"""Further files of a build: wheels for one without network, fetched here, and certificate authorities."""

from __future__ import annotations

import hashlib
import platform as machine
import re
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from kernelexec.docker.images.recipes import Recipe, write_files
from kernelexec.errors import ImageBuildFailed, InvalidRequest

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
