"""What commands run within: ``env``, ``xargs``, ``sh -c``, ``find -exec`` and their like are opened until nothing is inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernelexec.policy import python_commands
from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.expansion import UNKNOWN
from kernelexec.policy.shell.reader import Command, Script, read
from kernelexec.policy.shell.wrappers import CARRIERS, Carrier, after_options, option

_DEPTH_MAX = 12
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"})
_STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_UNSEEN = "what a shell is to run is made while it runs"
#: Put behind a text where a shell puts words that are not known.
_MORE = "${__more__}"
_MEANING = "it changes what names of commands mean"
#: What loads programs: its own first word is one.
_LOADER = re.compile(r"ld(?:-linux.*|-musl.*|\d*)\.so(?:\.\d+)*")
_ARCHITECTURE = re.compile(
    r"linux(?:32|64)|i[3-6]86|athlon|x86_64|uname26|aarch64|arm\w*|ppc\w*|s390x?|sparc\w*|mips\w*|riscv\w*"
)
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


def name_of(command: Command) -> str:
    """The name of the program, without its directory."""
    return command.words[0].rpartition("/")[2] if command.words else ""


@dataclass(frozen=True, slots=True)
class Found:
    """A command; ``carries`` says that it is there to run another, ``bomb`` that it is a function that multiplies."""

    command: Command
    carries: bool = False
    bomb: bool = False


def opened(script: Script, depth: int = 0) -> Iterator[Found]:
    """Each command, also those within others.

    Raises:
        UnparsableScript: what a shell is to run cannot be known.
    """
    if depth > _DEPTH_MAX:
        raise UnparsableScript("commands stand too deep in each other")
    yield from (Found(Command((name,)), bomb=True) for name in script.bombs)
    for command in script.commands:
        inner = _within(command)
        yield Found(command, carries=inner is not None)
        if inner is not None:
            yield from opened(inner, depth + 1)


def _within(command: Command) -> Script | None:
    """What a command runs; None where it runs no other."""
    name = name_of(command)
    if (special := _SPECIAL.get(name)) is not None:
        return special(command)
    if name in _SHELLS:
        return _shell(command)
    if name.startswith(("python", "pypy", "ipython")):
        return _python(command)
    carrier = CARRIERS.get("ld.so" if _LOADER.fullmatch(name) else name)
    return None if carrier is None else _carried(command, carrier)


def _carried(command: Command, carrier: Carrier) -> Script | None:
    rest = after_options(command.words[1:], carrier)
    if carrier.verbs:
        if not rest or rest[0] not in carrier.verbs:
            return None
        rest = after_options(rest[1:], carrier)
    else:
        rest = rest[carrier.own :]
    while rest and "=" in rest[0] and rest[0].split("=")[0].isidentifier():
        rest = rest[1:]
    return _one(command, rest)


def _one(command: Command, words: Sequence[str]) -> Script | None:
    return Script((replace(command, words=tuple(words)),), ()) if words else None


def _read(text: str, *arguments: str) -> Script:
    if UNKNOWN in text:
        raise UnparsableScript(_UNSEEN)
    return read(text, *arguments)


def _shell(command: Command) -> Script | None:
    words = list(command.words[1:])
    while words and words[0][:1] in ("-", "+") and words[0] not in ("-", "--"):
        word = words.pop(0)
        if not word.startswith("--") and "c" in word[1:]:
            while words and words[0][:1] in ("-", "+"):
                words.pop(0)
            return _read(words[0], *words[1:]) if words else None
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") and words:
            words.pop(0)
        if not word.startswith("--") and "s" in word[1:]:
            words = []
    words = words[1:] if words[:1] == ["--"] else words
    if words and f"/dev/fd/{UNKNOWN}" in words[0]:
        raise UnparsableScript(_UNSEEN)
    if words and words[0] not in _STDIN:
        return None  # a file, of which nothing is seen
    return None if command.stdin is None else _read(command.stdin)


def _text_of_all(command: Command) -> Script | None:
    return _read(" ".join(command.words[1:]))


def _source(command: Command) -> Script | None:
    if any(word.startswith("/dev/") for word in command.words[1:2]):
        raise UnparsableScript(_UNSEEN)
    return None


def _trap(command: Command) -> Script | None:
    words = [word for word in command.words[1:] if word != "--"]
    return _read(words[0]) if words and not words[0].startswith("-") else None


def _alias(command: Command) -> Script | None:
    return _read("\n".join(word.partition("=")[2] for word in command.words[1:] if "=" in word))


def _asked(command: Command) -> Script | None:
    """``command -v x`` says only what x is."""
    asks = any(word.startswith("-") and set("vV") & set(word) for word in command.words[1:2])
    return None if asks else _carried(command, CARRIERS["command"])


def _architecture(command: Command) -> Script | None:
    rest = after_options(command.words[1:], CARRIERS["setarch"])
    if rest and _ARCHITECTURE.fullmatch(rest[0]):
        rest = after_options(rest[1:], CARRIERS["setarch"])
    return _one(command, rest)


def _process(command: Command) -> Script | None:
    if command.words[0].startswith("/proc/"):
        raise UnparsableScript("it runs the program of a process")
    return None


def _names(command: Command) -> Script | None:
    """``hash -p`` and ``enable -f``."""
    if option(command.words[1:], "p" if name_of(command) == "hash" else "f") is not None:
        raise UnparsableScript(_MEANING)
    return None


def _for_lines(command: Command) -> Script | None:
    text = option(command.words[1:], "C")
    return None if text is None else _read(f"{text} {_MORE}")


def _completed(command: Command) -> Script | None:
    words = option(command.words[1:], "W")
    expanded = "" if words is None else f": <<__END__\n{words}\n__END__\n"
    text = option(command.words[1:], "C")
    return _read(f"{expanded}{'' if text is None else f'{text} {_MORE}'}")


def _text_by_option(command: Command) -> Script | None:
    text = option(command.words[1:], "c", "--command", "--session-command")
    return None if text is None else _read(text)


def _environment(command: Command) -> Script | None:
    text = option(command.words[1:2], "S", "--split-string")
    text = command.words[2] if text is None and command.words[1:2] == ("-S",) and len(command.words) > 2 else text  # noqa: PLR2004
    return _carried(command, CARRIERS["env"]) if text is None else _read(text)


def _watch(command: Command) -> Script | None:
    rest = after_options(command.words[1:], CARRIERS["watch"])
    return _read(" ".join(rest)) if rest else None


def _flock(command: Command) -> Script | None:
    text = option(command.words[1:], "c", "--command")
    return _carried(command, CARRIERS["flock"]) if text is None else _read(text)


def _xargs(command: Command) -> Script | None:
    rest = list(after_options(command.words[1:], CARRIERS["xargs"]))
    if not rest:
        return None
    given = [UNKNOWN] if command.stdin is None or UNKNOWN in command.stdin else command.stdin.split()
    mark = option(command.words[1:], "I", "--replace")
    if mark:
        put = [[word.replace(mark, item) for word in rest] for item in given]
        return Script(tuple(Command(tuple(words), command.writes) for words in put), ())
    return Script((Command((*rest, *given), command.writes),), ())


def _find(command: Command) -> Script | None:
    words, found = list(command.words[1:]), []
    starts = [word for word in _leading(words) if word]
    for place, word in enumerate(words):
        if word in _FIND_ACTIONS:
            end = next((stop for stop in range(place, len(words)) if words[stop] in (";", "+")), len(words))
            within = words[place + 1 : end]
            found += [Command(tuple(part.replace("{}", start) for part in within), command.writes) for start in starts or ["."]]
        if word == "-delete" and not any(
            test in words for test in ("-name", "-iname", "-path", "-regex", "-newer", "-mtime", "-size")
        ):
            found += [Command(("rm", "-r", start)) for start in starts]
    return Script(tuple(found), ()) if found else None


def _leading(words: Sequence[str]) -> list[str]:
    end = next((place for place, word in enumerate(words) if word.startswith(("-", "(", "!"))), len(words))
    return list(words[:end])


def _python(command: Command) -> Script | None:
    text = option(command.words[1:], "c")
    if text is None:
        return None
    return of_python(text.replace(UNKNOWN, "0"))


def of_python(source: str) -> Script:
    """What a Python text runs, as far as it says that in plain words.

    Raises:
        UnparsableScript: a command that it runs cannot be read.
    """
    calls = python_commands.commands_started_by(source)
    scripts = [_read(call) if isinstance(call, str) else Script((Command(tuple(call)),), ()) for call in calls]
    return Script(tuple(c for script in scripts for c in script.commands), tuple(b for script in scripts for b in script.bombs))


_SPECIAL: dict[str, Callable[[Command], Script | None]] = {
    "eval": _text_of_all,
    "source": _source,
    ".": _source,
    "trap": _trap,
    "command": _asked,
    "setarch": _architecture,
    "exe": _process,
    "hash": _names,
    "enable": _names,
    "mapfile": _for_lines,
    "readarray": _for_lines,
    "compgen": _completed,
    "complete": _completed,
    "alias": _alias,
    "su": _text_by_option,
    "env": _environment,
    "watch": _watch,
    "script": _text_by_option,
    "flock": _flock,
    "xargs": _xargs,
    "parallel": _xargs,
    "find": _find,
}
