"""The store of an executor's secrets: values are read when a kernel starts, and every value that was read stays masked."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio

from kernelexec.cancellation import call_in_own_thread
from kernelexec.config.secret_references import FromFile, FromFunction, FromVariable, Reference
from kernelexec.errors import InvalidConfig
from kernelexec.secrets.encodings import LEAST_CHARS
from kernelexec.secrets.masker import Masker

#: The largest secret, in bytes of UTF-8: a variable of a process has room for twice that.
SECRET_BYTES = 64 * 1024
#: The time for reading all secrets, in seconds.
_PATIENCE = 30.0
_LINKS_MAX = 8
_NEWLINE = "\r\n"
_TOO_LARGE = f"is larger than {SECRET_BYTES} bytes"
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _UnusableSecret(Exception):
    """A secret cannot be used; the message shows nothing of its value."""


class SecretStore:
    """A reader of secrets that remembers all their values."""

    def __init__(self, references: Mapping[str, Reference]) -> None:
        self.masker = Masker()
        """Masks all values that were read until now."""
        self._references = references
        self._known: dict[tuple[str, str], None] = {}

    async def read(self) -> dict[str, str]:
        """Return the present values by variable, masked from then on; raise ``InvalidConfig`` if one is missing or unfit."""
        try:
            with anyio.fail_after(_PATIENCE):
                values, error = await call_in_own_thread(self._read)
        except TimeoutError:
            values, error = {}, f"secrets: they were not read within {_PATIENCE:.0f} s."
        if error is not None:
            raise InvalidConfig(error)
        return values

    def _read(self) -> tuple[dict[str, str], str | None]:
        """Return the values, or the error as text: the exception is not kept, since it may hold a value."""
        values: dict[str, str] = {}
        for name, reference in self._references.items():
            try:
                values[name] = _check_value(_read_reference(reference))
            except _UnusableSecret as exc:
                return {}, f"secrets.{name}: {reference} {exc}."
        pairs = self._known | dict.fromkeys(values.items())
        if pairs != self._known:
            self.masker, self._known = Masker(pairs), pairs
        return values, None


def _read_reference(reference: Reference) -> str:
    match reference:
        case FromVariable():
            if (value := os.environ.get(reference.env)) is None:
                raise _UnusableSecret("is not set here: set it, or name another source")
            return value
        case FromFile():
            return _read_file(reference.file.expanduser())
        case FromFunction():
            return _call_function(reference)


def _call_function(reference: FromFunction) -> str:
    raised = ""
    try:
        value: object = reference.call()
    except BaseException as exc:  # noqa: BLE001 - its message may be the secret
        raised = type(exc).__name__
    if raised:
        raise _UnusableSecret(f"raised {raised}")
    if not isinstance(value, str):
        raise _UnusableSecret(f"returned {type(value).__name__}, not str")
    return value


def _read_file(path: Path) -> str:
    """Return the text of a regular file, without one newline at its end."""
    error = ""
    raw = b""
    try:
        fd = _open_file(path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                error = "is no regular file"
            else:
                with os.fdopen(os.dup(fd), "rb") as file:
                    raw = file.read(SECRET_BYTES + len(_NEWLINE) + 1)
                error = _TOO_LARGE if len(raw) > SECRET_BYTES + len(_NEWLINE) else ""
        finally:
            os.close(fd)
    except OSError as exc:
        error = f"cannot be read ({exc.strerror})"
    if error:
        raise _UnusableSecret(error)
    with suppress(UnicodeDecodeError):
        text = raw.decode()
        return text.removesuffix(_NEWLINE if text.endswith(_NEWLINE) else "\n")
    raise _UnusableSecret("is not UTF-8")


def _open_file(path: Path) -> int:
    """Open a file, without following a link of another user."""
    for _ in range(_LINKS_MAX):
        link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(link)
            if not stat.S_ISLNK(status.st_mode):
                return os.open(path, _OPENED)
            if status.st_uid not in (os.geteuid(), 0):
                raise OSError(errno.ELOOP, "it is another user's link")
            path = path.parent / os.readlink("", dir_fd=link)
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _check_value(value: str) -> str:
    """Return a value, once a variable can hold it and it can be masked."""
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise _UnusableSecret("is not valid text")
    if len(value.encode()) > SECRET_BYTES:
        raise _UnusableSecret(_TOO_LARGE)
    if len("".join(value.split())) < LEAST_CHARS:
        raise _UnusableSecret(f"has less than {LEAST_CHARS} characters that can be seen: to mask it would mask everything")
    if "\0" in value or "\x1b" in value:
        raise _UnusableSecret("holds a control character that no variable can have, or that is for terminals")
    return value
