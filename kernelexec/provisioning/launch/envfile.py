"""Variables from a file of lines ``NAME=VALUE``, as many tools write it."""

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


def variables_of(path: Path | None) -> Mapping[str, str]:
    """The variables that a file names; none without one. It is read again when it has changed.

    Raises:
        InvalidConfig: it cannot be read, is no regular file, or is larger than 1 MiB.
    """
    if path is None:
        return {}
    place = path.expanduser()
    try:
        found = place.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= _BYTES:
            return _read(str(place), found.st_mtime_ns, found.st_size)
        why = f"it is no regular file of at most {_BYTES} bytes"
    except OSError as exc:
        why = exc.strerror or str(exc)
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    message = f"environment.env_file: {place} cannot be read ({why}): name a file of lines NAME=VALUE, or leave it out."
    raise InvalidConfig(message)


@functools.lru_cache(maxsize=16)
def _read(path: str, changed: int, size: int) -> Mapping[str, str]:  # noqa: ARG001 - they say which contents it is
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        text = file.read(_BYTES).decode()
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (said := line.strip()) or said.startswith("#"):
            continue
        fits = _LINE.fullmatch(said)
        if fits is None or "\0" in said:
            logger.warning("kernelexec.environment_line_unread", extra={"file": path, "line": number})
            continue
        name, value = fits.groups()
        quoted = len(value) > 1 and value[0] in _QUOTES and value[0] == value[-1]
        found[name] = value[1:-1] if quoted else value
    return MappingProxyType(found)
