"""The secrets of one executor: their values are read when a kernel starts, and none that was ever read is shown again."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

from kernelexec.config.secret_references import FromFile, FromFunction, FromVariable, Reference
from kernelexec.errors import InvalidConfig
from kernelexec.secrets.encodings import LEAST_CHARS
from kernelexec.secrets.masker import Masker

#: The largest secret, in bytes of UTF-8: a variable of a process has room for twice that.
SECRET_BYTES = 64 * 1024
#: How long all of them may take to be read, in seconds.
_PATIENCE = 30.0
_LINKS_MAX = 8
_NEWLINE = "\r\n"
_TOO_LARGE = f"is larger than {SECRET_BYTES} bytes"
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Unfit(Exception):
    """Why a secret cannot be had, in words that show nothing of it."""


class SecretStore:
    """Reads secrets, and knows all values that they have had."""

    def __init__(self, references: Mapping[str, Reference]) -> None:
        self.masker = Masker()
        """What masks them, as they are known by now."""
        self._references = references
        self._known: dict[tuple[str, str], None] = {}

    async def read(self) -> dict[str, str]:
        """The values of now, by the names of the variables that kernels get. From then on they are masked.

        Raises:
            InvalidConfig: one is missing or unfit; the message names it, and shows nothing of any value.
        """
        try:
            with anyio.fail_after(_PATIENCE):
                limiter = anyio.CapacityLimiter(1)  # a function of the caller's may take every thread that there is
                values, why = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True, limiter=limiter)
        except TimeoutError:
            values, why = {}, f"secrets: they were not read within {_PATIENCE:.0f} s."
        if why is not None:
            raise InvalidConfig(why)
        return values

    def _read(self) -> tuple[dict[str, str], str | None]:
        """The values; or why not. What was raised on the way is not kept: it may hold a value."""
        values: dict[str, str] = {}
        for name, reference in self._references.items():
            try:
                values[name] = _checked(_value(reference))
            except _Unfit as exc:
                return {}, f"secrets.{name}: {reference} {exc}."
        pairs = self._known | dict.fromkeys(values.items())
        if pairs != self._known:
            self.masker, self._known = Masker(pairs), pairs
        return values, None


def _value(reference: Reference) -> str:
    match reference:
        case FromVariable():
            if (found := os.environ.get(reference.env)) is None:
                raise _Unfit("is not set here: set it, or name another source")
            return found
        case FromFile():
            return _content(reference.file.expanduser())
        case FromFunction():
            return _returned(reference)


def _returned(reference: FromFunction) -> str:
    raised = ""
    try:
        found: object = reference.call()
    except Exception as exc:  # noqa: BLE001 - the caller's own; what it says may be the secret
        raised = type(exc).__name__
    if raised:
        message = f"raised {raised}"
        raise _Unfit(message)
    if not isinstance(found, str):
        message = f"returned {type(found).__name__}, not str"
        raise _Unfit(message)
    return found


def _content(path: Path) -> str:
    """The text of a regular file, without one newline at its end."""
    why = ""
    raw = b""
    try:
        fd = _opened(path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                why = "is no regular file"
            else:
                with os.fdopen(os.dup(fd), "rb") as file:
                    raw = file.read(SECRET_BYTES + len(_NEWLINE) + 1)
                why = _TOO_LARGE if len(raw) > SECRET_BYTES + len(_NEWLINE) else ""
        finally:
            os.close(fd)
    except OSError as exc:
        why = f"cannot be read ({exc.strerror})"
    if why:
        raise _Unfit(why)
    with suppress(UnicodeDecodeError):
        text = raw.decode()
        return text.removesuffix(_NEWLINE if text.endswith(_NEWLINE) else "\n")
    raise _Unfit("is not UTF-8")


def _opened(path: Path) -> int:
    """A file. A link that somebody else has put in its place is not followed.

    Raises:
        OSError: it cannot be opened.
    """
    for _ in range(_LINKS_MAX):
        link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(link)
            if not stat.S_ISLNK(found.st_mode):
                return os.open(path, _OPENED)
            if found.st_uid not in (os.geteuid(), 0):
                raise OSError(errno.ELOOP, "it is another user's link")
            path = path.parent / os.readlink("", dir_fd=link)
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _checked(value: str) -> str:
    """A value that a variable can hold and that can be masked."""
    why = ""
    if any("\ud800" <= char <= "\udfff" for char in value):
        why = "holds what is no text"
    elif len(value.encode()) > SECRET_BYTES:
        why = _TOO_LARGE
    elif len("".join(value.split())) < LEAST_CHARS:
        why = f"has less than {LEAST_CHARS} characters that can be seen: to mask it would mask everything"
    elif "\0" in value or "\x1b" in value:
        why = "holds a control character that no variable can have, or that is for terminals"
    if why:
        raise _Unfit(why)
    return value
