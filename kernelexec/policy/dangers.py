"""Classes of dangerous commands, which are refused whatever else is allowed.

Commands are matched by the words that a program would get, not by text: ``echo dd`` prints. The classes are those of
MassGen's and AG2's sanitisers; in sudo mode the four that change users and permissions are allowed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelexec.policy.shell.reader import GLOB, Command
from kernelexec.policy.shell.wrappers import name_of

_DISK = re.compile(
    r"/+dev/+(?:(?:sd|hd|vd|xvd)[a-z]+\d*|nvme\d+n\d+(?:p\d+)?|mmcblk\d+(?:p\d+)?|dm-\d+|md\d+|loop\d+|(?:disk|mapper)/.+)"
)
_TOP = re.compile("bin|boot|dev|etc|home|lib(?:32|64)?|media|mnt|opt|proc|root|run|sbin|srv|sys|usr|var")
_MAKER = re.compile(r"mkfs(?:\..+)?|mke2fs|mkswap|mkdosfs|mkntfs|[cs]?fdisk|s?gdisk|parted|wipefs|blkdiscard|badblocks|format")
_TELLING = frozenset(["--help", "--version", "-h", "-V"])
#: Programs that only list with -l.
_LISTERS = frozenset(["fdisk", "sfdisk", "gdisk", "parted"])
_WRITERS = frozenset(["tee", "cp", "mv", "install", "shred", "truncate"])
_RECURSIVE = frozenset("rR")


@dataclass(frozen=True, slots=True)
class Danger:
    """A class of commands, by its rule's name; ``by_sudo`` says that sudo mode lifts it."""

    name: str
    description: str
    matches: Callable[[Command], bool]
    is_allowed_with_sudo: bool = False


def find_danger(command: Command, *, sudo: bool) -> Danger | None:
    """Return the class of a dangerous command, or None."""
    if command.is_bomb:
        return _BOMB
    return next((danger for danger in _DANGERS if not (sudo and danger.is_allowed_with_sudo) and danger.matches(command)), None)


def _has_name(*names: str) -> Callable[[Command], bool]:
    return lambda command: name_of(command) in names


def _removes_all(command: Command) -> bool:
    if name_of(command) != "rm":
        return False
    options, targets = _split_options(command.words[1:])
    recursive = any(
        (option.startswith("--") and "--recursive".startswith(option) and len(option) > 2)  # noqa: PLR2004 - after the dashes
        or (not option.startswith("--") and _RECURSIVE & set(option))
        for option in options
    )
    return recursive and any(map(_is_everything, targets))


def _split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options and the other words of a command; behind ``--`` no word is an option."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word.startswith("-") and word != "-"]
    return options, [word for word in words[:end] if word not in options] + list(words[end + 1 :])


def _is_everything(path: str) -> bool:
    """Tell whether a path is the root, a directory of the system, a home, or all the content of one of them."""
    if path in ("~", "~/", "~/*", "~/.*", "~root", "~/.", "~/.."):
        return True
    if not path.startswith("/"):
        return False
    plain = posixpath.normpath(re.sub(r"/+(?:\.?[*?]+|\{[^}]*\})?$", "", path) or "/").lstrip("/")
    return plain in ("", ".") or _TOP.fullmatch(plain) is not None or ("/" not in plain and bool(GLOB & set(plain)))


def _moves_to_nothing(command: Command) -> bool:
    return name_of(command) == "mv" and any(posixpath.normpath(word) == "/dev/null" for word in command.words[1:])


def _is_disk(path: str) -> bool:
    return _DISK.fullmatch(posixpath.normpath(path) if path.startswith("/") else path) is not None


def _writes_to_disk(command: Command) -> bool:
    written = list(command.writes)
    if name_of(command) in _WRITERS:
        written += command.words[1:]
    return any(map(_is_disk, written))


def _makes_filesystems(command: Command) -> bool:
    name, words = name_of(command), command.words[1:]
    tells = (len(words) == 1 and words[0] in _TELLING) or (name in _LISTERS and words[:1] in (("-l",), ("--list",)))
    return _MAKER.fullmatch(name) is not None and not tells


_BOMB = Danger("fork-bomb", "a function that multiplies without end", lambda _: False)
_DANGERS = (
    Danger("rm-root", "removing the root, a directory of the system, or a home", _removes_all),
    Danger("mv-null", "moving files to /dev/null", _moves_to_nothing),
    Danger("dd", "dd, which writes over disks", _has_name("dd", "dcfldd", "ddrescue")),
    Danger("disk", "writing to a disk", _writes_to_disk),
    Danger("mkfs", "making or changing file systems and partitions", _makes_filesystems),
    Danger("sudo", "sudo", _has_name("sudo", "doas", "pkexec", "runuser"), is_allowed_with_sudo=True),
    Danger("su", "su", _has_name("su"), is_allowed_with_sudo=True),
    Danger("chown", "changing the owner of files", _has_name("chown", "chgrp"), is_allowed_with_sudo=True),
    Danger("chmod", "changing the permissions of files", _has_name("chmod", "setfacl"), is_allowed_with_sudo=True),
)
NAMES = (_BOMB.name, *(danger.name for danger in _DANGERS))
