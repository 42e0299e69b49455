"""Commands that run another one, whose words follow their own (``env``, ``timeout``, ``uv run``), and how these end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Carrier:
    """How a command's own words end: options that take a word (letters, and long names), then so many words of its own."""

    letters: str = ""
    names: frozenset[str] = frozenset()
    own: int = 0
    verbs: frozenset[str] = frozenset()
    """Where there are any, its first word must be one of them, as in ``uv run``."""


def _carrier(letters: str = "", names: str = "", own: int = 0, verbs: str = "") -> Carrier:
    return Carrier(letters, frozenset(names.split()), own, frozenset(verbs.split()))


CARRIERS = {
    "env": _carrier("uCS", "--unset --chdir --split-string"),
    "sudo": _carrier("ugpCTDRUrth", "--user --group --prompt --close-from --chdir --chroot --other-user --role --type --host"),
    "doas": _carrier("uC"),
    "pkexec": _carrier("", "--user"),
    "runuser": _carrier("ugGw", "--user --group --supp-group"),
    "setpriv": _carrier("", "--reuid --regid --groups"),
    "nice": _carrier("n", "--adjustment"),
    "ionice": _carrier("cnpPu", "--class --classdata"),
    "chrt": _carrier("TPD", "", 1),
    "taskset": _carrier("", "", 1),
    "nohup": _carrier(),
    "setsid": _carrier(),
    "stdbuf": _carrier("ioe", "--input --output --error"),
    "unbuffer": _carrier(),
    "timeout": _carrier("ks", "--kill-after --signal", 1),
    "time": _carrier("fo", "--format --output"),
    "command": _carrier(),
    "builtin": _carrier(),
    "exec": _carrier("a"),
    "coproc": _carrier(),
    "linux32": _carrier(),
    "linux64": _carrier(),
    "i386": _carrier(),
    "x86_64": _carrier(),
    "setarch": _carrier(),
    "ssh-agent": _carrier("aEOPt"),
    "ld.so": _carrier(
        "", "--library-path --preload --argv0 --inhibit-rpath --audit --glibc-hwcaps-prepend --glibc-hwcaps-mask"
    ),
    "strace": _carrier("aeEIobOpPsSuUX"),
    "ltrace": _carrier("aAeFlnopsuwx"),
    "chroot": _carrier("", "--userspec --groups", 1),
    "unshare": _carrier("RSGw", "--root --wd --setuid --setgid"),
    "nsenter": _carrier("tSG", "--target --setuid --setgid"),
    "flock": _carrier("wEc", "--timeout --conflict-exit-code --command", 1),
    "prlimit": _carrier("p", "--pid"),
    "busybox": _carrier(),
    "toybox": _carrier(),
    "fakeroot": _carrier("liusb"),
    "watch": _carrier("nq", "--interval --equexit"),
    "xargs": _carrier("adEILnPs", "--arg-file --delimiter --max-lines --max-args --max-procs --replace --max-chars"),
    "parallel": _carrier("jNnLaI", "--jobs --max-args --delay --timeout --joblog --colsep"),
    "uv": _carrier("p", "--with --python --project --directory --env-file --extra --group", 1, "run"),
    "poetry": _carrier("CP", "--directory --project", 1, "run"),
    "pipenv": _carrier("", "", 1, "run"),
    "pdm": _carrier("p", "", 1, "run"),
    "hatch": _carrier("e", "", 1, "run"),
    "conda": _carrier("npc", "--name --prefix --cwd", 1, "run"),
    "mamba": _carrier("np", "--name --prefix", 1, "run"),
    "micromamba": _carrier("np", "--name --prefix", 1, "run"),
}


def after_options(words: Sequence[str], carrier: Carrier) -> Sequence[str]:
    """The words behind a command's options."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        word = words[place]
        place += 1
        if word == "--":
            break
        if word.startswith("--"):
            place += word in carrier.names
        else:
            place += any(letter in carrier.letters for letter in word[1:]) and word[-1] in carrier.letters
    return words[place:]


def option(words: Sequence[str], letter: str, *names: str) -> str | None:
    """The word that an option takes, if it is there, as in ``-c TEXT``, ``-lc TEXT``, ``-cTEXT`` and ``--command=TEXT``."""
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else None
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
