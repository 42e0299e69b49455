"""Certificate authorities for an image, from files or from this machine."""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterable
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
