"""Certificate authorities for an image, from files or from this machine."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelexec.errors import InvalidRequest

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


def authorities(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the certificates in files and directories as files of a build's context.

    Other content of the files, such as keys, is left out.

    Raises:
        InvalidRequest: a file or directory is missing, or contains no certificate.
    """
    return _as_files(certificate for path in paths for certificate in _certificates(path))


def own_authorities(anchors: Iterable[Path] | None = None) -> dict[str, bytes]:
    """Return the authorities that were added to this machine, or all that it trusts if none were."""
    places = map(Path, _ANCHORS) if anchors is None else anchors
    added = [pem for directory in places if directory.is_dir() for path in _files(directory) for pem in _in_file(path)]
    if added:
        return _as_files(added)
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return _as_files(ssl.DER_cert_to_PEM_cert(certificate).encode() for certificate in trusted)


def _certificates(path: Path) -> list[bytes]:
    if not path.exists():
        message = f"There is no file or directory {path} with certificate authorities."
        raise InvalidRequest(message)
    certificates = [certificate for file in _files(path) for certificate in _in_file(file)]
    if not certificates:
        message = f"{path} holds no certificate: a file in PEM or DER form is needed, in a directory as *.crt, *.pem or *.cer."
        raise InvalidRequest(message)
    return certificates


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.suffix in _SUFFIXES and file.is_file())
    else:
        yield path


def _in_file(path: Path) -> list[bytes]:
    content = path.read_bytes()
    if content.startswith(_DER):
        return [ssl.DER_cert_to_PEM_cert(content).encode()]
    return [pem + b"\n" for pem in _PEM.findall(content)]


def _as_files(certificates: Iterable[bytes]) -> dict[str, bytes]:
    """Return one file for each certificate, as ``update-ca-certificates`` needs it; each once."""
    return {f"extra-ca/{hashlib.sha256(pem).hexdigest()[:16]}.crt": pem for pem in certificates}
