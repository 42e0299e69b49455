"""Commands that start the command whose words follow their own: ``env``, ``timeout``, ``uv run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WrapperCommand:
    """A command that starts another: its options that take a word (letters and long names), and its number of own words.

    ``verbs`` are the subcommands that start another command, as in ``uv run``, where there are any.
    """

    letters: str = ""
    names: frozenset[str] = frozenset()
    own: int = 0
    verbs: frozenset[str] = frozenset()


def _wrapper(letters: str = "", names: str = "", own: int = 0, verbs: str = "") -> WrapperCommand:
    return WrapperCommand(letters, frozenset(names.split()), own, frozenset(verbs.split()))


WRAPPERS = {
    "env": _wrapper("uCS", "--unset --chdir --split-string"),
    "sudo": _wrapper("ugpCTDRUrth", "--user --group --prompt --close-from --chdir --chroot --other-user --role --type --host"),
    "doas": _wrapper("uC"),
    "pkexec": _wrapper("", "--user"),
    "runuser": _wrapper("ugGw", "--user --group --supp-group"),
    "setpriv": _wrapper("", "--reuid --regid --groups"),
    "nice": _wrapper("n", "--adjustment"),
    "ionice": _wrapper("cnpPu", "--class --classdata"),
    "chrt": _wrapper("TPD", "", 1),
    "taskset": _wrapper("", "", 1),
    "nohup": _wrapper(),
    "setsid": _wrapper(),
    "stdbuf": _wrapper("ioe", "--input --output --error"),
    "unbuffer": _wrapper(),
    "timeout": _wrapper("ks", "--kill-after --signal", 1),
    "time": _wrapper("fo", "--format --output"),
    "command": _wrapper(),
    "builtin": _wrapper(),
    "exec": _wrapper("a"),
    "linux32": _wrapper(),
    "linux64": _wrapper(),
    "i386": _wrapper(),
    "x86_64": _wrapper(),
    "setarch": _wrapper(),
    "ssh-agent": _wrapper("aEOPt"),
    "ld.so": _wrapper(
        "", "--library-path --preload --argv0 --inhibit-rpath --audit --glibc-hwcaps-prepend --glibc-hwcaps-mask"
    ),
    "strace": _wrapper("aeEIobOpPsSuUX"),
    "ltrace": _wrapper("aAeFlnopsuwx"),
    "chroot": _wrapper("", "--userspec --groups", 1),
    "unshare": _wrapper("RSGw", "--root --wd --setuid --setgid"),
    "nsenter": _wrapper("tSG", "--target --setuid --setgid"),
    "flock": _wrapper("wEc", "--timeout --conflict-exit-code --command", 1),
    "prlimit": _wrapper("p", "--pid"),
    "busybox": _wrapper(),
    "toybox": _wrapper(),
    "fakeroot": _wrapper("liusb"),
    "watch": _wrapper("nq", "--interval --equexit"),
    "xargs": _wrapper("adEILnPs", "--arg-file --delimiter --max-lines --max-args --max-procs --replace --max-chars"),
    "parallel": _wrapper("jNnLaI", "--jobs --max-args --delay --timeout --joblog --colsep"),
    "uv": _wrapper("p", "--with --python --project --directory --env-file --extra --group", 1, "run"),
    "poetry": _wrapper("CP", "--directory --project", 1, "run"),
    "pipenv": _wrapper("", "", 1, "run"),
    "pdm": _wrapper("p", "", 1, "run"),
    "hatch": _wrapper("e", "", 1, "run"),
    "conda": _wrapper("npc", "--name --prefix --cwd", 1, "run"),
    "mamba": _wrapper("np", "--name --prefix", 1, "run"),
    "micromamba": _wrapper("np", "--name --prefix", 1, "run"),
}


def skip_options(words: Sequence[str], carrier: WrapperCommand) -> Sequence[str]:
    """Return the words behind a command's options."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word = words[position]
        position += 1
        if word == "--":
            break
        if word.startswith("--"):
            position += word in carrier.names
        else:
            position += any(letter in carrier.letters for letter in word[1:]) and word[-1] in carrier.letters
    return words[position:]


def option_value(words: Sequence[str], letter: str, *names: str) -> str | None:
    """Return the word of an option, as in ``-c TEXT``, ``-lc TEXT``, ``-cTEXT``, ``--command=TEXT``, or None."""
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else None
        if word in names:
            return following
        for name in names:
            if word.startswith(f"{name}="):
                return word.removeprefix(f"{name}=")
        if word.startswith("-") and not word.startswith("--") and letter in word[1:]:
            return word.partition(letter)[2] or following
        if word == "--":
            break
    return None
