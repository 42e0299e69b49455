"""Accounts that commands run as instead of the kernel's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from ..platform import pwd


@dataclass(frozen=True)
class Account:
    """An account of this system."""

    uid: int
    gid: int
    variables: dict[str, str]
    """The variables that name it to programs."""
    process_options: dict[str, Any]
    """Arguments of ``subprocess.Popen`` for a process of the account."""


def find_other(user: str) -> Account | None:
    """Return the account of a name or number, which this process may not know; None if it is this process's own."""
    entry = find_entry(user)
    if entry is None:
        uid = int(user) if user.isdecimal() else -1
        return None if uid == os.getuid() else Account(uid, uid, {}, {"user": uid, "group": uid, "extra_groups": []})
    if entry.pw_uid == os.getuid():
        return None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    process_options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
    return Account(entry.pw_uid, entry.pw_gid, variables_of(entry), process_options)


def find_entry(user: str) -> Any:
    """Return the entry of ``passwd`` for a name or number; None if there is none."""
    try:
        return pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, AttributeError):
        return None


def variables_of(entry: Any) -> dict[str, str]:
    """Return the variables that name an account to programs."""
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
