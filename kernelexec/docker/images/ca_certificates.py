"""Certificate authorities for an image: those of files that somebody names, or those that this machine was given."""

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
#: Where administrators put authorities of their own: Debian, Fedora, Arch, SUSE.
_ANCHORS = (
    "/usr/local/share/ca-certificates",
    "/etc/pki/ca-trust/source/anchors",
    "/etc/ca-certificates/trust-source/anchors",
    "/etc/pki/trust/anchors",
)


def authorities(paths: Iterable[Path]) -> dict[str, bytes]:
    """The certificates in these files, and in the files of these directories, as files of a build's context.

    What else a file holds, a key for one, stays where it is.

    Raises:
        InvalidRequest: a file or directory is missing, or holds no certificate.
    """
    return _as_files(certificate for path in paths for certificate in _certificates(path))


def own_authorities(anchors: Iterable[Path] | None = None) -> dict[str, bytes]:
    """Those that were added to this machine; all that it trusts, where it has no place for those."""
    places = map(Path, _ANCHORS) if anchors is None else anchors
    added = [found for place in places if place.is_dir() for path in _files(place) for found in _in_file(path)]
    if added:
        return _as_files(added)
    trusted = ssl.create_default_context().get_ca_certs(binary_form=True)
    return _as_files(ssl.DER_cert_to_PEM_cert(certificate).encode() for certificate in trusted)


def _certificates(path: Path) -> list[bytes]:
    if not path.exists():
        message = f"There is no file or directory {path} to take certificate authorities from."
        raise InvalidRequest(message)
    found = [certificate for file in _files(path) for certificate in _in_file(file)]
    if not found:
        message = f"{path} holds no certificate: a file in PEM or DER form is needed, in a directory as *.crt, *.pem or *.cer."
        raise InvalidRequest(message)
    return found


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (file for file in sorted(path.rglob("*")) if file.suffix in _SUFFIXES and file.is_file())
    else:
        yield path


def _in_file(path: Path) -> list[bytes]:
    content = path.read_bytes()
    if content.startswith(_DER):
        return [ssl.DER_cert_to_PEM_cert(content).encode()]
    return [found + b"\n" for found in _PEM.findall(content)]


def _as_files(certificates: Iterable[bytes]) -> dict[str, bytes]:
    """One certificate a file, as ``update-ca-certificates`` wants it; each once."""
    return {f"extra-ca/{hashlib.sha256(one).hexdigest()[:16]}.crt": one for one in certificates}
