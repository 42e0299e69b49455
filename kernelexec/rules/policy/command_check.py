"""The check of shell commands by rules: dangerous classes first, then the allow list, then the block list.

Commands are matched by the words received by a program, not by text: ``echo dd`` prints. The dangerous classes, refused
whatever else is allowed, come from MassGen's and AG2's sanitisers. Sudo mode allows the four classes that change users and
permissions.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernelexec.rules.policy.magics import UNKNOWN
from kernelexec.rules.policy.refusal import PLAINLY, Refusal, shorten_command
from kernelexec.rules.policy.shell_commands import name_of, nested_commands, script_of_python
from kernelexec.rules.policy.shell_reader import GLOB, Command, Script, UnparsableScript, read

_OTHERWISE = "Nothing ran; other commands are not concerned."
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
class CommandCheck:
    """A check of commands by the rules of a session. The fields are those of ``CommandRules``."""

    allowed: tuple[re.Pattern[str], ...]
    blocked: tuple[re.Pattern[str], ...]
    sudo: bool
    match: Literal["command", "prefix"]
    dangers: bool

    def check_text(self, text: str) -> Refusal | None:
        """Return the refusal of a text for a shell, or None if it may run."""
        if self.match == "prefix" and (refusal := self._check_lists(text)) is not None:
            return refusal
        return self._check_script(text, lambda: read(text))

    def check_words(self, words: Sequence[str]) -> Refusal | None:
        """Return the refusal of a program with these words, or None if the program may start."""
        return self._check_script(" ".join(words), lambda: Script((Command(tuple(words)),)))

    def check_python(self, source: str) -> Refusal | None:
        """Return the refusal of Python code for commands started by literal words, or None if the code may run."""
        return self._check_script(source, lambda: script_of_python(source))

    def _check_script(self, text: str, script: Callable[[], Script]) -> Refusal | None:
        try:
            refusals = (
                self._check_command(command, is_wrapper=is_wrapper) for command, is_wrapper in nested_commands(script())
            )
            return next(filter(None, refusals), None)
        except UnparsableScript as exc:
            return Refusal("unread", shorten_command(text), f"It cannot be judged: {exc}", PLAINLY)

    def _check_command(self, command: Command, *, is_wrapper: bool) -> Refusal | None:
        words, name = " ".join(command.words), name_of(command)
        text = shorten_command(words or f"> {' '.join(command.writes)}")
        if self.dangers and (danger := find_danger(command, sudo=self.sudo)) is not None:
            return Refusal(danger.name, text, f"It is dangerous: {danger.description}", _OTHERWISE)
        # After the dangers, which may be certain by other words than the program's, such as a disk that is written to.
        if UNKNOWN in name or GLOB & set(name):
            return Refusal("unknown-command", text, "Its program is not literal, so the rules do not know it", PLAINLY)
        if self.match == "command" and command.words and not command.is_bomb:
            return self._check_lists(words, is_wrapper=is_wrapper)
        return None

    def _check_lists(self, text: str, *, is_wrapper: bool = False) -> Refusal | None:
        shown = shorten_command(text)
        if self.allowed and not is_wrapper and not any(pattern.match(text) for pattern in self.allowed):
            patterns = ", ".join(pattern.pattern for pattern in self.allowed)
            return Refusal("allowed-commands", shown, "It is not on the list of allowed commands", f"Allowed: {patterns}")
        blocking = next((pattern for pattern in self.blocked if pattern.match(text)), None)
        if blocking is None:
            return None
        return Refusal(
            "blocked-commands", shown, f"It is blocked by {blocking.pattern!r}", "Commands that it does not match may run."
        )


@dataclass(frozen=True, slots=True)
class Danger:
    """A class of dangerous commands, with the name of its rule; ``is_allowed_with_sudo``: sudo mode lifts the rule."""

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
    """Return the options and the other words of a command; all words after ``--`` are others."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word.startswith("-") and word != "-"]
    return options, [word for word in words[:end] if word not in options] + list(words[end + 1 :])


def _is_everything(path: str) -> bool:
    """Return whether a path is the root, a directory of the system, a home, or all content of such a directory."""
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
