"""Variables from a file of lines ``NAME=VALUE``."""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kernelexec.errors import InvalidConfig

_LINE = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*?)[ \t]*", re.ASCII)
_BYTES = 1024 * 1024
_QUOTES = ("'", '"')
logger = logging.getLogger("kernelexec")


def read_env_file(path: Path | None) -> Mapping[str, str]:
    """Read the variables of a file, again after each change; empty without a file.

    Raises:
        InvalidConfig: the file cannot be read, is no regular file, or is larger than 1 MiB.
    """
    if path is None:
        return {}
    file = path.expanduser()
    try:
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _BYTES:
            return _parse_file(str(file), status.st_mtime_ns, status.st_size)
        reason = f"it must be a regular file of at most {_BYTES} bytes"
    except OSError as exc:
        reason = exc.strerror or str(exc)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    message = f"environment.env_file: {file} cannot be read ({reason}): name a file of lines NAME=VALUE, or leave it out."
    raise InvalidConfig(message)


@functools.lru_cache(maxsize=16)
def _parse_file(path: str, changed: int, size: int) -> Mapping[str, str]:  # noqa: ARG001 - key of the cache
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        text = file.read(_BYTES).decode()
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (entry := line.strip()) or entry.startswith("#"):
            continue
        match = _LINE.fullmatch(entry)
        if match is None or "\0" in entry:
            logger.warning("kernelexec.env_file_line_ignored", extra={"file": path, "line": number})
            continue
        name, value = match.groups()
        quoted = len(value) > 1 and value[0] in _QUOTES and value[0] == value[-1]
        variables[name] = value[1:-1] if quoted else value
    return MappingProxyType(variables)
