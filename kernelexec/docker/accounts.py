"""Accounts in containers for users without an entry in the image's ``passwd``: programs such as sudo need an account."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from kernelexec.docker.client import Engine, map_docker_errors
from kernelexec.docker.images.recipes import pack_files
from kernelexec.errors import ContainerGone

#: The directory of accounts in containers.
PLACE = PurePosixPath("/etc")
_NAME = b"kernel"
_FILE_BYTES = 1024 * 1024
#: The number of fields in a line of ``passwd``; the sixth is the home.
_FIELDS = 7


def missing_account(engine: Engine, container: str, user: str, home: str, *, own_home: bool = False) -> dict[str, bytes]:
    """Return ``passwd`` and ``group`` of a container before its start, with the missing lines for ``UID:GID``.

    Unchanged files are left out: all if nothing is missing, or if the image has no accounts at all. A ``group`` that cannot be
    read is left out too: in its place our line alone would hide all others. With ``own_home`` an existing account gets
    ``home`` too.
    """
    passwd = _read(engine, container, "passwd")
    if passwd is None:
        return {}
    known = with_home(passwd, user, home) if own_home else passwd
    files = {"passwd": (passwd, with_user(known, user, home))}
    if (group := _read(engine, container, "group")) is not None:
        files["group"] = (group, with_group(group, user))
    return {name: after for name, (before, after) in files.items() if after != before}


def with_user(passwd: bytes, user: str, home: str) -> bytes:
    """Return ``passwd`` with an account for ``UID:GID``, which has no password and needs no line in ``shadow``."""
    uid, gid = user.encode().split(b":")
    # A colon or a newline in the home would begin another field or another account.
    directory = home.encode() if home.isprintable() and ":" not in home else b"/"
    return _with_line(passwd, uid, b"*:" + uid + b":" + gid + b"::" + directory + b":/bin/sh")


def with_home(passwd: bytes, user: str, home: str) -> bytes:
    """Return ``passwd`` with another home for a user id: some programs, such as ssh, do not read ``HOME``."""
    uid = user.encode().partition(b":")[0]
    lines = [line.split(b":") for line in passwd.splitlines()]
    for line in lines:
        if line[2:3] == [uid] and len(line) == _FIELDS:
            line[5] = home.encode()
    return b"".join(b":".join(line) + b"\n" for line in lines)


def with_group(group: bytes, user: str) -> bytes:
    """Return ``group`` with an entry for the group of ``UID:GID``."""
    gid = user.encode().split(b":")[1]
    return _with_line(group, gid, b"*:" + gid + b":")


def give_account(engine: Engine, container: str, files: Mapping[str, bytes]) -> None:
    """Replace files in the container's own file system, where programs of the container can change the copies."""
    with pack_files(files) as packed, map_docker_errors("give the container an account"):
        engine.api.put_archive(container, str(PLACE), packed)


def write_account(directory: Path, files: Mapping[str, bytes]) -> list[tuple[str, str, bool]]:
    """Write files into a directory of this machine; return the read-only mounts over the container's own files."""
    mounts = []
    for name, content in files.items():
        path, fresh = directory / name, directory / f"{name}.new"
        fresh.write_bytes(content)
        fresh.chmod(0o644)
        fresh.replace(path)  # a bind mount follows the inode: an existing container keeps its file
        mounts.append((str(path), str(PLACE / name), True))
    return mounts


def _with_line(content: bytes, number: bytes, rest: bytes) -> bytes:
    lines = [line.split(b":") for line in content.splitlines()]
    if any(line[2:3] == [number] for line in lines):  # a slice: lines of an image may have fewer fields
        return content
    names = {line[0] for line in lines}
    name = _NAME if _NAME not in names else _NAME + b"-" + number
    end = b"\n" if content and not content.endswith(b"\n") else b""
    return content + end + name + b":" + rest + b"\n"


def _read(engine: Engine, container: str, name: str) -> bytes | None:
    """Return a file of ``/etc`` in the container; None if missing, not a regular file, or an archive of more than 1 MiB."""
    packed = io.BytesIO()  # in memory, so bounded: the image decides about its size
    with suppress(ContainerGone), map_docker_errors("give a file of the container"):
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
