"""Checks of the arguments of features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelexec.errors import InvalidRequest

_USER_CHARS = 256


def check_whole_number(value: object, name: str, meaning: str, low: int, high: int | None = None) -> int:
    """Return a whole number; raise ``InvalidRequest`` for another value. ``meaning`` completes the message."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidRequest(f"{name}={value!r:.100} must be {meaning}, {limits}.")
    return value


def check_names(names: object, limit: int) -> list[str]:
    """Return the names of variables as a list; raise ``InvalidRequest`` for another value, or for too many."""
    texts = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [None]
    if len(texts) > limit or not all(isinstance(name, str) for name in texts):
        raise InvalidRequest(f"names={names!r:.100} must be a list of names, {limit} at most.")
    return [str(name) for name in texts]


def check_variables(env: object) -> tuple[tuple[str, str], ...]:
    """Return the variables of a command; raise ``InvalidRequest`` unless they are texts by names of variables."""
    if env is None:
        return ()
    if not isinstance(env, Mapping):
        raise InvalidRequest(f"env must be a dictionary of texts, not {type(env).__name__}.")
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or not _is_text(name):
            raise InvalidRequest(f"env has {name!r:.100}, which is no name of a variable.")
        if not isinstance(value, str) or not _is_text(value):
            raise InvalidRequest(f"env[{name!r:.100}] must be text without NUL characters, not {type(value).__name__}.")
    return tuple(env.items())


def check_account(user: object) -> str | None:
    """Return the name or number of an account; raise ``InvalidRequest`` for another value."""
    if user is None:
        return None
    if isinstance(user, int) and not isinstance(user, bool) and user >= 0:
        return str(user)
    is_name = isinstance(user, str) and 0 < len(user) <= _USER_CHARS and user.isprintable() and not user.startswith("-")
    if not isinstance(user, str) or not is_name:
        raise InvalidRequest(f"user={user!r:.100} must be the name or the number of an account.")
    return user


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
