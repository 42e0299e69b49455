"""Shell commands that are safe to repeat: those that read, those that change only the shell, and a few that end the same."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Sequence

from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.expansion import UNKNOWN
from kernelexec.policy.shell.reader import Command, read
from kernelexec.replay_safety import effect_tables
from kernelexec.replay_safety.effect_tables import words

#: Commands that read, whatever their arguments, or that change their own shell only.
_READING = frozenset(
    words("""cd export set unset alias unalias pwd ls cat head tail grep egrep fgrep wc sort uniq cut tr rev nl fold column comm
    join paste echo printf whoami id groups uname which type true false : test [ [[ diff cmp du df stat file md5sum sha1sum
    sha224sum sha256sum sha384sum sha512sum cksum b2sum basename dirname realpath readlink seq sleep hostname ps free nproc
    uptime lscpu jq tree strings hexdump xxd od locale umask shift local return exit wait read touch pushd popd dirs""")
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_FIND_ACTS = ("-delete", "-exec", "-execdir", "-ok", "-okdir", "-fprint", "-fprint0", "-fprintf", "-fls")
_GIT_READS = frozenset(words("status log diff show rev-parse describe ls-files blame shortlog grep cat-file ls-tree"))
_GIT_LISTS = {"branch": {"-a", "-r", "-v", "-vv", "--show-current"}, "remote": {"-v"}, "tag": {"-l"}, "stash": {"list"}}
_CURL_READS = re.compile(r"-[sSfLIkvio]+|-O|--(?:silent|show-error|fail|location|head|insecure|include|output|compressed)")
_SED_PRINTS = re.compile(r"(?:[\d,$+~ ]*[pq=];?)+")
_SHOWN_CHARS = 60


def reason_against_script(text: str) -> str | None:
    """Return the reason why a shell script is not safe to repeat, or None. A script that is not understood is not safe."""
    try:
        script = read(text)
    except UnparsableScript as exc:
        return f"its command is not judged: {exc}"
    if script.has_substitution:
        return "its command holds a command substitution, which is not judged"
    if script.has_background:
        return "it leaves a process behind (`&`)"
    return next((reason for command in script.commands if (reason := _reason_against(command))), None)


def reason_against_program(argv: Sequence[str]) -> str | None:
    """Return the reason why a program with its arguments is not safe to start again, or None."""
    return _reason_against(Command(tuple(argv)))


def reason_against_call(node: ast.Call) -> str | None:
    """Return the reason why the program of a call is not safe to start again, or None. An unknown program is not safe."""
    first = node.args[0] if node.args else None
    if (text := effect_tables.constant(first)) is not None:
        argv = [text, *(effect_tables.constant(word) for word in node.args[1:])]
        is_line = len(argv) == 1
        return reason_against_script(text) if is_line else reason_against_program([word or "" for word in argv])
    if isinstance(first, ast.List | ast.Tuple) and first.elts:
        shown = [effect_tables.constant(word) for word in first.elts]
        if ast.unparse(first.elts[0]) == "sys.executable":
            shown[0] = "python"
        if shown[0] in ("bash", "sh") and shown[1:2] == ["-c"] and len(shown) > 2:  # noqa: PLR2004 - sh -c SCRIPT
            return reason_against_script(shown[2]) if shown[2] else "it starts a command that cannot be seen"
        if shown[0] is not None:
            return reason_against_program([shlex.quote("?") if word is None else word for word in shown])
    return "it starts a command that cannot be seen"


def _reason_against(command: Command) -> str | None:
    if command.appends:
        return f"it adds to the file {command.appends[0]} or changes it in place"
    words = command.words
    if not words or _is_repeatable(words[0].rpartition("/")[2], list(words[1:])):
        return None
    return f"it runs `{' '.join(words).replace(UNKNOWN, '…')[:_SHOWN_CHARS]}`"


def _is_repeatable(name: str, rest: list[str]) -> bool:
    if name in _READING:
        return True
    rule = _RULES.get(re.sub(r"^(python|pip)[\d.]+$", r"\1", name))
    return rule is not None and rule(rest)


def _forbid_options(*options: str) -> Callable[[list[str]], bool]:
    """Return a rule: none of the options is there, alone or with a value after ``=``."""
    return lambda rest: not any(word.split("=")[0] in options for word in rest)


def _is_env_repeatable(rest: list[str]) -> bool:
    left = [word for word in rest if not _ASSIGNMENT.match(word)]
    return not left or (not left[0].startswith("-") and _is_repeatable(left[0], left[1:]))


def _is_python_repeatable(rest: list[str]) -> bool:
    if rest[:2] == ["-m", "pip"]:
        return _is_pip_repeatable(rest[2:])
    return rest in (["--version"], ["-V"], ["-VV"])


def _is_pip_repeatable(rest: list[str]) -> bool:
    return bool(rest) and rest[0] in {"list", "show", "freeze", "check", "install", "--version", "-V", "config", "debug"}


def _is_git_repeatable(rest: list[str]) -> bool:
    while rest[:1] == ["-C"] or rest[:1] == ["--no-pager"]:
        rest = rest[2 if rest[0] == "-C" else 1 :]
    if not rest:
        return False
    if rest[0] in _GIT_LISTS:
        return set(rest[1:]) <= _GIT_LISTS[rest[0]] and (rest[0] != "stash" or len(rest) > 1)
    return rest[0] in _GIT_READS and _forbid_options("--output", "-O", "--open-files-in-pager")(rest)


def _is_curl_repeatable(rest: list[str]) -> bool:
    return all(_CURL_READS.fullmatch(word) for word in rest if word.startswith("-"))


def _is_sed_repeatable(rest: list[str]) -> bool:
    return rest[:1] == ["-n"] and len(rest) > 1 and _SED_PRINTS.fullmatch(rest[1]) is not None


_RULES: dict[str, Callable[[list[str]], bool]] = {
    "find": _forbid_options(*_FIND_ACTS),
    "rg": _forbid_options("--pre"),
    "date": lambda rest: not any(re.match(r"-[uR]*s|--set", word) for word in rest),
    "tee": lambda rest: not any(re.fullmatch(r"-\w*a\w*|--app?e?n?d?", word) for word in rest),
    "mkdir": lambda rest: "-p" in rest or "--parents" in rest,
    "command": lambda rest: rest[:1] in (["-v"], ["-V"]),
    "env": _is_env_repeatable,
    "printenv": lambda _rest: True,
    "python": _is_python_repeatable,
    "pip": _is_pip_repeatable,
    "git": _is_git_repeatable,
    "curl": _is_curl_repeatable,
    "sed": _is_sed_repeatable,
}
