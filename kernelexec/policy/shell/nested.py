"""The commands that other commands start: behind ``env`` or ``xargs``, in ``sh -c``, in ``find -exec``, at any depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernelexec.policy.shell import python_commands
from kernelexec.policy.shell.errors import UnparsableScript
from kernelexec.policy.shell.expansion import UNKNOWN
from kernelexec.policy.shell.reader import Command, Script, read
from kernelexec.policy.shell.wrappers import WRAPPERS, WrapperCommand, option_value, skip_options

_DEPTH_MAX = 12
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"})
_STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_NOT_LITERAL = "the text that a shell is to run is not literal"
#: The loader of programs: its own first word is a program.
_LOADER = re.compile(r"ld(?:-linux.*|-musl.*|\d*)\.so(?:\.\d+)*")
_ARCHITECTURE = re.compile(
    r"linux(?:32|64)|i[3-6]86|athlon|x86_64|uname26|aarch64|arm\w*|ppc\w*|s390x?|sparc\w*|mips\w*|riscv\w*"
)
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_TESTS = ("-name", "-iname", "-path", "-regex", "-newer", "-mtime", "-size")
#: Words of the language, which are no program: the grammar took a part of a block for a command.
_RESERVED = frozenset(
    "! { } if then elif else fi while until do done case esac for select function".split(),  # noqa: SIM905 - shorter
)
#: Options of builtins that take commands, or that change the meaning of a command's name.
_RUN_LATER = {"mapfile": "C", "readarray": "C", "compgen": "C", "complete": "C", "hash": "p", "enable": "f"}


def name_of(command: Command) -> str:
    """Return the name of a program without its directory."""
    return command.words[0].rpartition("/")[2] if command.words else ""


@dataclass(frozen=True, slots=True)
class NestedCommand:
    """A command of a script; ``carries`` marks one that only starts another, ``bomb`` a function that multiplies."""

    command: Command
    is_wrapper: bool = False
    is_bomb: bool = False


def nested_commands(script: Script, depth: int = 0) -> Iterator[NestedCommand]:
    """Yield each command of a script, also those within others.

    Raises:
        UnparsableScript: The text that a shell is to run is not literal.
    """
    if depth > _DEPTH_MAX:
        raise UnparsableScript("commands stand too deep in each other")
    yield from (NestedCommand(Command((name,)), is_bomb=True) for name in script.bombs)
    for command in script.commands:
        inner = _within(command)
        yield NestedCommand(command, is_wrapper=inner is not None)
        if inner is not None:
            yield from nested_commands(inner, depth + 1)


def script_of_python(source: str) -> Script:
    """Return the commands that a Python text starts by literal words.

    Raises:
        UnparsableScript: A command that it runs cannot be read.
    """
    calls = python_commands.commands_started_by(source)
    scripts = [_literal(call) if isinstance(call, str) else Script((Command(tuple(call)),)) for call in calls]
    return Script(tuple(c for script in scripts for c in script.commands), tuple(b for script in scripts for b in script.bombs))


def _within(command: Command) -> Script | None:
    """Return the commands that a command starts, or None where it starts no other."""
    name = name_of(command)
    if name in _RESERVED:
        message = f"it is not clear what {name!r} means"
        raise UnparsableScript(message)
    if name in _SHELLS:
        return _shell(command)
    if name.startswith(("python", "pypy", "ipython")):
        text = option_value(command.words[1:], "c")
        return None if text is None else script_of_python(text.replace(UNKNOWN, "0"))
    if name in _RUN_LATER and option_value(command.words[1:], _RUN_LATER[name]) is not None:
        raise UnparsableScript("it has commands run later, or changes the meaning of commands' names")
    if (special := _SPECIAL.get(name)) is not None:
        return special(command)
    wrapper = WRAPPERS.get("ld.so" if _LOADER.fullmatch(name) else name)
    return None if wrapper is None else _of_wrapper(command, wrapper)


def _of_wrapper(command: Command, wrapper: WrapperCommand) -> Script | None:
    rest = skip_options(command.words[1:], wrapper)
    if wrapper.verbs:
        if not rest or rest[0] not in wrapper.verbs:
            return None
        rest = skip_options(rest[1:], wrapper)
    else:
        rest = rest[wrapper.own :]
    while rest and "=" in rest[0] and rest[0].split("=")[0].isidentifier():
        rest = rest[1:]
    return _single_command(command, rest)


def _single_command(command: Command, words: Sequence[str]) -> Script | None:
    return Script((replace(command, words=tuple(words)),)) if words else None


def _read(text: str | None) -> Script | None:
    return None if text is None else _literal(text)


def _literal(text: str, *arguments: str) -> Script:
    if UNKNOWN in text:
        raise UnparsableScript("the text that a shell is to run is not literal")
    return read(text, *arguments)


def _shell(command: Command) -> Script | None:
    words = list(command.words[1:])
    while words and words[0][:1] in ("-", "+") and words[0] not in ("-", "--"):
        word = words.pop(0)
        if not word.startswith("--") and "c" in word[1:]:
            while words and words[0][:1] in ("-", "+"):
                words.pop(0)
            return _literal(words[0], *words[1:]) if words else None
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") and words:
            words.pop(0)
        if not word.startswith("--") and "s" in word[1:]:
            words = []
    words = words[1:] if words[:1] == ["--"] else words
    if words and f"/dev/fd/{UNKNOWN}" in words[0]:
        raise UnparsableScript(_NOT_LITERAL)
    if words and words[0] not in _STDIN:
        return None  # a file, which is not looked into
    return _read(command.stdin)


def _source(command: Command) -> Script | None:
    if any(word.startswith("/dev/") for word in command.words[1:2]):
        raise UnparsableScript(_NOT_LITERAL)
    return None


def _trap(command: Command) -> Script | None:
    words = [word for word in command.words[1:] if word != "--"]
    return _read(words[0]) if words and not words[0].startswith("-") else None


def _command(command: Command) -> Script | None:
    """Return the command behind ``command``; with ``-v`` it is only looked up."""
    asks = any(word.startswith("-") and set("vV") & set(word) for word in command.words[1:2])
    return None if asks else _of_wrapper(command, WRAPPERS["command"])


def _coproc(command: Command) -> Script | None:
    if not _RESERVED.isdisjoint(command.words):
        raise UnparsableScript("it runs a block beside the shell")
    return _single_command(command, command.words[1:])


def _architecture(command: Command) -> Script | None:
    rest = skip_options(command.words[1:], WRAPPERS["setarch"])
    if rest and _ARCHITECTURE.fullmatch(rest[0]):
        rest = skip_options(rest[1:], WRAPPERS["setarch"])
    return _single_command(command, rest)


def _process(command: Command) -> Script | None:
    if command.words[0].startswith("/proc/"):
        raise UnparsableScript("it runs the program of a process")
    return None


def _compgen(command: Command) -> Script | None:
    words = option_value(command.words[1:], "W") or ""
    if "$(" in words or "`" in words:
        raise UnparsableScript("it expands commands in a list of words")
    return None


def _env(command: Command) -> Script | None:
    text = option_value(command.words[1:2], "S", "--split-string")
    text = command.words[2] if text is None and command.words[1:2] == ("-S",) and len(command.words) > 2 else text  # noqa: PLR2004
    return _of_wrapper(command, WRAPPERS["env"]) if text is None else _read(text)


def _watch(command: Command) -> Script | None:
    return _read(" ".join(skip_options(command.words[1:], WRAPPERS["watch"])) or None)


def _flock(command: Command) -> Script | None:
    text = option_value(command.words[1:], "c", "--command")
    return _of_wrapper(command, WRAPPERS["flock"]) if text is None else _read(text)


def _xargs(command: Command) -> Script | None:
    rest = list(skip_options(command.words[1:], WRAPPERS["xargs"]))
    if not rest:
        return None
    items = [UNKNOWN] if command.stdin is None or UNKNOWN in command.stdin else command.stdin.split()
    mark = option_value(command.words[1:], "I", "--replace")
    commands = [[word.replace(mark, item) for word in rest] for item in items] if mark else [[*rest, *items]]
    return Script(tuple(Command(tuple(words), command.writes) for words in commands))


def _find(command: Command) -> Script | None:
    words, commands = list(command.words[1:]), list[Command]()
    end = next((index for index, word in enumerate(words) if word.startswith(("-", "(", "!"))), len(words))
    starts = [word for word in words[:end] if word]
    for index, word in enumerate(words):
        if word in _FIND_ACTIONS:
            end = next((stop for stop in range(index, len(words)) if words[stop] in (";", "+")), len(words))
            within = words[index + 1 : end]
            commands += [
                Command(tuple(part.replace("{}", start) for part in within), command.writes) for start in starts or ["."]
            ]
        if word == "-delete" and not any(test in words for test in _FIND_TESTS):
            commands += [Command(("rm", "-r", start)) for start in starts]
    return Script(tuple(commands)) if commands else None


_SPECIAL: dict[str, Callable[[Command], Script | None]] = {
    "eval": lambda command: _read(" ".join(command.words[1:])),
    "alias": lambda command: _read("\n".join(word.partition("=")[2] for word in command.words[1:] if "=" in word)),
    "su": lambda command: _read(option_value(command.words[1:], "c", "--command", "--session-command")),
    "script": lambda command: _read(option_value(command.words[1:], "c", "--command")),
    "source": _source,
    ".": _source,
    "trap": _trap,
    "command": _command,
    "coproc": _coproc,
    "setarch": _architecture,
    "exe": _process,
    "compgen": _compgen,
    "env": _env,
    "watch": _watch,
    "flock": _flock,
    "xargs": _xargs,
    "parallel": _xargs,
    "find": _find,
}
