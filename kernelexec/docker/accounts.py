"""Accounts of users whom an image does not know, in its containers: there are programs, like sudo, that serve nobody else."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from kernelexec.docker.client import Engine, mapped
from kernelexec.errors import ContainerGone

#: Where containers have their accounts.
PLACE = PurePosixPath("/etc")
_NAME = b"kernel"
_FILE_BYTES = 1024 * 1024
#: Of a line of ``passwd``; the sixth is the home.
_FIELDS = 7


def missing_account(engine: Engine, container: str, user: str, home: str, *, own_home: bool = False) -> dict[str, bytes]:
    """``passwd`` and ``group`` of a container that does not run yet, with the lines that they lack for ``UID:GID``.

    It is empty where nothing is missing, and where the image has no accounts at all. With ``own_home`` an account that is
    there gets that home too.

    Raises:
        EngineRefused, EngineAway: nobody says.
    """
    passwd = _read(engine, container, "passwd")
    if passwd is None:
        return {}
    group = _read(engine, container, "group") or b""
    known = moved(passwd, user, home) if own_home else passwd
    found = {"passwd": (passwd, with_user(known, user, home)), "group": (group, with_group(group, user))}
    return {name: after for name, (before, after) in found.items() if after != before}


def with_user(passwd: bytes, user: str, home: str) -> bytes:
    """The accounts, and one for ``UID:GID`` if there is none. It has no password, and asks for none in ``shadow``."""
    uid, gid = user.encode().split(b":")
    place = home.encode() if home.isprintable() and ":" not in home else b"/"
    return _with_line(passwd, uid, b"*:" + uid + b":" + gid + b"::" + place + b":/bin/sh")


def moved(passwd: bytes, user: str, home: str) -> bytes:
    """The accounts, those of a user id with another home: some programs, like ssh, ask the account for it."""
    uid = user.encode().partition(b":")[0]
    lines = [line.split(b":") for line in passwd.splitlines()]
    for line in lines:
        if line[2:3] == [uid] and len(line) == _FIELDS:
            line[5] = home.encode()
    return b"".join(b":".join(line) + b"\n" for line in lines)


def with_group(group: bytes, user: str) -> bytes:
    """The groups, and one for the group of ``UID:GID`` if there is none."""
    gid = user.encode().split(b":")[1]
    return _with_line(group, gid, b"*:" + gid + b":")


def give_account(engine: Engine, container: str, files: Mapping[str, bytes]) -> None:
    """Put these files in the place of the container's own: it has them for itself, and can change them.

    Raises:
        EngineRefused, EngineAway: they are not there.
    """
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    with mapped("give the container an account"):
        engine.api.put_archive(container, str(PLACE), packed.getvalue())


def write_account(directory: Path, files: Mapping[str, bytes]) -> list[tuple[str, str, bool]]:
    """Write these files into a directory of this machine; the mounts by which a container sees them in the place of its own."""
    mounts = []
    for name, content in files.items():
        path, fresh = directory / name, directory / f"{name}.new"
        fresh.write_bytes(content)
        fresh.chmod(0o644)
        fresh.replace(path)  # a container that is still there keeps what it has
        mounts.append((str(path), str(PLACE / name), True))
    return mounts


def _with_line(content: bytes, number: bytes, rest: bytes) -> bytes:
    lines = [line.split(b":") for line in content.splitlines()]
    if any(line[2:3] == [number] for line in lines):
        return content
    names = {line[0] for line in lines}
    name = _NAME if _NAME not in names else _NAME + b"-" + number
    end = b"\n" if content and not content.endswith(b"\n") else b""
    return content + end + name + b":" + rest + b"\n"


def _read(engine: Engine, container: str, name: str) -> bytes | None:
    """A file of the container; None where there is none, or something else."""
    packed = io.BytesIO()
    with suppress(ContainerGone), mapped("give a file of the container"):
        chunks, _ = engine.api.get_archive(container, str(PLACE / name))
        for chunk in chunks:
            packed.write(chunk)
            if packed.tell() > _FILE_BYTES:
                chunks.close()
                return None
    packed.seek(0)
    with suppress(tarfile.TarError, KeyError), tarfile.open(fileobj=packed) as tar:
        file = tar.extractfile(name) if tar.getmember(name).isreg() else None
        return None if file is None else file.read()
    return None
