"""Secrets for a kernel without our launcher, passed through a pipe in its private directory, so that no file holds them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import platform

PIPE_NAME = "secrets"
_PIPE_BYTES = 1024 * 1024


@contextmanager
def secret_pipe(directory: Path, values: Mapping[str, str], user: tuple[int, int] | None) -> Iterator[str | None]:
    """Open a pipe from which the guard reads the secrets, and remove it afterwards; yield None without secrets.

    ``user`` is the user and group of the kernel, if that may differ from the caller's.

    Raises:
        KernelStartFailed: the secrets are too large for a pipe.
    """
    if not values:
        yield None
        return
    path, data = directory / PIPE_NAME, json.dumps(values).encode() + b"\n"
    os.mkfifo(path, 0o600)
    if user is not None and user[0] != os.getuid():
        os.chown(path, -1, user[1])
        path.chmod(0o640)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if len(data) <= _PIPE_BYTES:
            platform.grow_pipe(pipe, len(data))
        if len(data) > _PIPE_BYTES or os.write(pipe, data) < len(data):
            message = f"All secrets together take {len(data)} bytes, the limit is {_PIPE_BYTES}: use fewer or shorter ones."
            raise KernelStartFailed(message)
        yield str(path)
    finally:
        os.close(pipe)
        path.unlink(missing_ok=True)
