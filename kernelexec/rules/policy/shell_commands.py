"""Commands started by other commands: behind ``env`` or ``xargs``, in ``sh -c``, ``find -exec`` or Python, also nested."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from kernelexec.rules.policy.magics import UNKNOWN
from kernelexec.rules.policy.shell_reader import Command, Script, UnparsableScript, read

_DEPTH_MAX = 12
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh")
_STDIN = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FIND_TESTS = frozenset({"-name", "-iname", "-path", "-regex", "-newer", "-mtime", "-size"})
#: Words of the language, which are no program: the grammar took a part of a block for a command.
_RESERVED = re.compile(r"[!{}]|if|then|elif|else|fi|while|until|do|done|case|esac|for|select|function")
#: Commands that start the command behind their own words: for each its options that take a word, the number of its own
#: words, and in brackets the subcommand that starts another.
_WRAPPERS = """
    nohup; setsid; unbuffer; command; builtin; coproc; setarch; busybox; toybox; doas -uC; exec -a; ssh-agent -aEOPt;
    env -uCS --unset --chdir --split-string; time -fo --format --output; timeout -ks --kill-after --signal 1;
    sudo -ugpCTDRUrth --user --group --prompt --close-from --chdir --chroot --other-user --role --type --host;
    pkexec --user; runuser -ugGw --user --group --supp-group; setpriv --reuid --regid --groups; fakeroot -liusb;
    nice -n --adjustment; ionice -cnpPu --class --classdata; chrt -TPD 1; taskset 1; prlimit -p --pid;
    stdbuf -ioe --input --output --error; watch -nq --interval --equexit; strace -aeEIobOpPsSuUX; ltrace -aAeFlnopsuwx;
    chroot --userspec --groups 1; unshare -RSGw --root --wd --setuid --setgid; nsenter -tSG --target --setuid --setgid;
    xargs -adEILnPs --arg-file --delimiter --max-lines --max-args --max-procs --replace --max-chars;
    parallel -jNnLaI --jobs --max-args --delay --timeout --joblog --colsep;
    flock -wEc --timeout --conflict-exit-code --command 1;
    uv -p --with --python --project --directory --env-file --extra --group [run]; poetry -CP --directory --project [run];
    pipenv [run]; pdm -p [run]; hatch -e [run]; conda -npc --name --prefix --cwd [run]; mamba -np --name --prefix [run];
    micromamba -np --name --prefix [run]
"""
WRAPPERS = {name: frozenset(words) for name, *words in map(str.split, _WRAPPERS.split(";"))}
#: Functions of Python that start a program, by their names; those that others have too count after a module only.
_STARTERS = frozenset({"system", "popen", "getoutput", "getstatusoutput", "check_call", "check_output", "Popen"})
_STARTERS_OF_MODULES = _STARTERS | {"run", "call", "spawn", "create_subprocess_shell", "create_subprocess_exec"}
_MODULES = frozenset({"os", "subprocess", "sp", "pty", "asyncio", "commands", "ip", "ipython", "shell"})


def name_of(command: Command) -> str:
    """Return the name of a program without its directory."""
    program = command.words[0] if command.words else ""
    return program.rpartition("/")[2] or program


def nested_commands(script: Script, depth: int = 0) -> Iterator[tuple[Command, bool]]:
    """Yield each command of a script, nested commands included, and whether the command only starts another.

    Raises:
        UnparsableScript: The text for a shell is not literal, or the commands are nested too deeply.
    """
    if depth > _DEPTH_MAX:
        raise UnparsableScript("commands stand too deep in each other")
    for command in script.commands:
        inner = _within(command) if command.words and not command.is_bomb else None
        yield command, inner is not None
        if inner is not None:
            yield from nested_commands(inner, depth + 1)


def script_of_python(source: str) -> Script:
    """Return the commands started by literal words in a Python text; all others are judged at their start.

    Raises:
        UnparsableScript: The text of a command cannot be read.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return Script(())
    commands: list[Command] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=str(text)), *others]) if _starts_programs(function):
                words = [word.value for word in others if isinstance(word, ast.Constant) and isinstance(word.value, str)]
                is_exec = ast.unparse(function).endswith("create_subprocess_exec")
                commands += [Command((text, *words))] if is_exec else _read(text).commands
            case ast.Call(func=function, args=[ast.List(elts=words) | ast.Tuple(elts=words), *_]) if _starts_programs(function):
                match words:
                    case [ast.Constant(value=str()), *_]:
                        commands.append(Command(tuple(map(_literal, words))))
    return Script(tuple(commands))


def _starts_programs(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Call(), attr=name):  # of what __import__("os") gives
            return name in _STARTERS_OF_MODULES
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return name in _STARTERS_OF_MODULES and owner in _MODULES
        case ast.Name(id=name):
            return name in _STARTERS
    return False


def _literal(word: ast.expr) -> str:
    return word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else UNKNOWN


def skip_options(words: Sequence[str], wrapper: frozenset[str]) -> Sequence[str]:
    """Return the words behind a command's options."""
    letters = "".join(option[1:] for option in wrapper if re.match("-[^-]", option))
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word = words[position]
        position += 1
        if word == "--":
            break
        position += word in wrapper if word.startswith("--") else word[-1] in letters
    return words[position:]


def option_value(words: Sequence[str], letter: str, *names: str) -> str | None:
    """Return the word of an option, as in ``-c TEXT``, ``-lc TEXT``, ``-cTEXT``, ``--command=TEXT``, or None."""
    for word, following in zip_longest(words, words[1:]):
        name, is_assigned, value = word.partition("=")
        if name in names:
            return value if is_assigned else following
        if word.startswith("-") and not word.startswith("--") and letter in word[1:]:
            return word.partition(letter)[2] or following
        if word == "--":
            break
    return None


def _within(command: Command) -> Script | None:
    """Return the commands started by a command, or None for a command that starts none."""
    name, words = name_of(command), command.words[1:]
    if _RESERVED.fullmatch(name):
        message = f"it is not clear what {name!r} means"
        raise UnparsableScript(message)
    if name in _COMMANDS:
        return _COMMANDS[name](command)
    if name.startswith(("python", "pypy", "ipython")):
        text = option_value(words, "c")
        return None if text is None else script_of_python(text.replace(UNKNOWN, "0"))
    if name in _TEXTS and (text := _TEXTS[name](words)) is not None:
        return _read(text)
    is_lookup = name == "command" and any(re.match("-p?[vV]", word) for word in words[:1])
    return None if name not in WRAPPERS or is_lookup else _of_wrapper(command, WRAPPERS[name])


def _of_wrapper(command: Command, wrapper: frozenset[str]) -> Script | None:
    rest = skip_options(command.words[1:], wrapper)["1" in wrapper :]
    if "[run]" in wrapper:
        rest = skip_options(rest[1:], wrapper) if rest[:1] == ("run",) else ()
    # Assignments before the command, as behind `env` and `sudo`.
    while rest and "=" in rest[0] and rest[0].split("=")[0].isidentifier():
        rest = rest[1:]
    return Script((replace(command, words=tuple(rest), writes=(), appends=()),)) if rest else None


def _read(text: str) -> Script:
    if UNKNOWN in text:
        raise UnparsableScript("the text that a shell is to run is not literal")
    return read(text)


def _of_shell(command: Command) -> Script | None:
    words = list(command.words[1:])
    while words and words[0][:1] in ("-", "+") and words[0] not in ("-", "--"):
        option = words.pop(0)
        letters = "" if option.startswith("--") else option[1:]
        if "c" in letters:
            while words and words[0][:1] in ("-", "+"):
                words.pop(0)
            return _read(words[0]) if words else None
        if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            words = words[1:]
        if "s" in letters:
            words = []
    words = words[1:] if words[:1] == ["--"] else words
    if words and words[0] not in _STDIN:  # a file, which is not looked into
        return _read(UNKNOWN) if f"/dev/fd/{UNKNOWN}" in words[0] else None
    return None if command.stdin is None else _read(command.stdin)


def _of_xargs(command: Command) -> Script | None:
    rest = list(skip_options(command.words[1:], WRAPPERS[name_of(command)]))
    if not rest:
        return None
    items = [UNKNOWN] if command.stdin is None or UNKNOWN in command.stdin else command.stdin.split()
    mark = option_value(command.words[1:], "I", "--replace")
    commands = [[word.replace(mark, item) for word in rest] for item in items] if mark else [[*rest, *items]]
    return Script(tuple(Command(tuple(words)) for words in commands))


def _of_find(command: Command) -> Script | None:
    words, commands = command.words[1:], list[Command]()
    end = next((index for index, word in enumerate(words) if word.startswith(("-", "(", "!"))), len(words))
    starts = [word for word in words[:end] if word]
    for index, word in enumerate(words):
        if word in _FIND_ACTIONS:
            end = next((stop for stop in range(index, len(words)) if words[stop] in (";", "+")), len(words))
            within = words[index + 1 : end]
            commands += [Command(tuple(part.replace("{}", start) for part in within)) for start in starts or ["."]]
        if word == "-delete" and _FIND_TESTS.isdisjoint(words):
            commands += [Command(("rm", "-r", start)) for start in starts]
    return Script(tuple(commands)) if commands else None


def _split_string(words: Sequence[str]) -> str | None:
    options = words[: len(words) - len(skip_options(words, WRAPPERS["env"]))]
    return option_value([option for option in options if not re.match("-[uC]", option)], "S", "--split-string")


def _handler(words: Sequence[str]) -> str | None:
    text = next((word for word in words if word != "--"), "-")
    return None if text.startswith("-") else text


_COMMANDS: dict[str, Callable[[Command], Script | None]] = {
    "find": _of_find,
    **dict.fromkeys(_SHELLS, _of_shell),
    **dict.fromkeys(["xargs", "parallel"], _of_xargs),
}
#: The text for a shell among the words of a command, or None where there is none.
_TEXTS: dict[str, Callable[[Sequence[str]], str | None]] = {
    "eval": " ".join,
    "env": _split_string,
    "flock": lambda words: option_value(words, "c", "--command"),
    "script": lambda words: option_value(words, "c", "--command"),
    "su": lambda words: option_value(words, "c", "--command", "--session-command"),
    "trap": _handler,
    "watch": lambda words: " ".join(skip_options(words, WRAPPERS["watch"])) or None,
    **dict.fromkeys(["source", "."], lambda words: UNKNOWN if words and words[0].startswith("/dev/") else None),
}
