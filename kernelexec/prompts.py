"""What a model is told of where its code runs, for its system prompt, and how it is asked to find a failure's cause."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from kernelexec.config import Config
from kernelexec.results import Diagnosis, ExecutionResult, PythonEnvironment
from kernelexec.results.usage import size_text
from kernelexec.text import clean_text, cut_middle

#: How many packages are named, and how long what is quoted may be, in bytes.
_PACKAGES, _CODE_BYTES, _TEXT_BYTES = 150, 20_000, 8_000
#: Packages that a reader thinks of by other words, or that are there for the kernel itself.
_QUIET = frozenset({"ipykernel", "ipython", "jupyter-client", "jupyter-core", "traitlets", "pyzmq", "tornado", "comm", "pip"})

OFF = "Code execution is switched off here: nothing that you write is run. Do not claim that you have run anything."
_HOW = """\
What you run stays: variables, imports and functions last from cell to cell, until the kernel is replaced, which the result \
then says (state lost). After a failure or a timeout with state kept go on from there: mend what failed, and run nothing again \
that has run."""
_ANSWERS = (
    "Say what the results mean, in your answer: its reader does not see what your code printed.",
    "Name the files that you made, by their paths, and do not paste what is in them.",
    "Put the findings and the reasoning into the answer itself, not only into files.",
)
_REQUIREMENTS = "If what you hand over needs packages, put a requirements.txt beside it that names them with their versions."
_STEPS = """\
1. Analyse: what does the failing line do, and what did it get?
2. Root cause: say which assumption was wrong, and where it was made; the line that failed is often not the one to mend.
3. Fix: say what has to change, and why that removes the cause and not only the message.
4. Corrected code: write it out whole, ready to run; do not repeat what has run and is kept.
5. Explain: say how to see that it works, and how to keep it from coming back."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a session; what is not is None."""

    config: Config
    cwd: str | None = None
    """The workspace, as its code sees it; None where there are several."""
    environment: PythonEnvironment | None = None
    """What its kernel says; None where none lives."""
    context: tuple[str, ...] = ()
    """The paths of ``context_paths``, in their order, as its code sees them; where there are none, as they are here."""
    memory_bytes: int | None = None
    cpus: float | None = None


def guidance(about: Surroundings, *, requirements: bool = False) -> str:
    """Text for a system prompt: where code runs and what it finds there, and what belongs into an answer.

    Args:
        about: the session.
        requirements: whether a list of packages is asked for beside what is handed over.
    """
    if not about.config.enabled:
        return OFF
    answers = [*_ANSWERS, *([_REQUIREMENTS] if requirements else [])]
    parts = {"Where your code runs": [_HOW, *_where(about)], "What belongs into your answer": answers}
    return "\n\n".join("\n".join((f"## {title}", *(f"- {line}" for line in lines))) for title, lines in parts.items()) + "\n"


def debugging(code: str, result: ExecutionResult) -> str:
    """A prompt for a model that is to mend a cell: the code, how it failed, what is known of the cause, and five steps."""
    told = list(_known(result.diagnosis)) if result.diagnosis is not None else []
    state = {"kept": "All variables are kept.", "lost": "The kernel was replaced: variables and imports are gone."}
    parts = [
        "This cell failed. Find out why, and mend it.",
        _quoted("Code", code, _CODE_BYTES, "python" if result.language == "python" else result.language),
        _quoted("Output", result.text, _TEXT_BYTES),
        "\n".join([f"Exit code {result.exit_code}. {state.get(result.state, 'Whether the state is kept is unknown.')}", *told]),
        f"Go by these five steps:\n{_STEPS}",
    ]
    return "\n\n".join(parts) + "\n"


def _quoted(title: str, text: str, limit_bytes: int, language: str = "") -> str:
    shown = cut_middle(clean_text(text).rstrip("\n"), limit_bytes) or "(nothing)"
    fence = "`" * max(3, *(len(run) + 1 for run in _runs(shown)), 3)
    return f"{title}:\n{fence}{language}\n{shown}\n{fence}"


def _runs(text: str) -> Iterator[str]:
    """The runs of backticks in a text: a fence around it is longer than each."""
    run = ""
    for character in text:
        run = run + character if character == "`" else ""
        if run:
            yield run


def _known(found: Diagnosis) -> Iterator[str]:
    if found.cause:
        yield f"Cause: {found.cause}"
    if found.line is not None:
        yield f"Line {found.line} of the cell: {found.line_text or ''}".rstrip(": ")
    for call in found.calls[:-1]:
        yield f"By line {call.line} of cell {call.cell}{f', in {call.function}' if call.function else ''}: {call.text or ''}"
    for hint in found.hints:
        yield f"Hint: {hint}"
    if found.retryable:
        yield "The same cell may succeed as it is."


def _where(about: Surroundings) -> Iterator[str]:
    config, found = about.config, about.environment
    yield _place(config, found)
    if about.cwd is not None:
        yield f"Your workspace, where cells and commands begin: {about.cwd}. Write files there, by relative paths."
    seen = about.context or tuple(str(context.path) for context in config.context_paths)
    for path, context in zip(seen, config.context_paths, strict=True):
        yield f"You also see {path}, {'to write too' if context.permission == 'write' else 'to read only'}."
    if found is not None:
        yield from _python(found)
    yield _network(config)
    yield from _programs(config, found)
    yield _limits(about)
    yield from _rules(config)


def _place(config: Config, found: PythonEnvironment | None) -> str:
    system = f", {found.system}" if found is not None and found.system else ""
    if config.isolation == "container":
        image = " or ".join(config.container.image)
        once = " Each cell has a new one: no variable lasts." if config.container.mode == "ephemeral" else ""
        return f"In a container of the image {image}{system}.{once}"
    holds = {"bubblewrap": "in namespaces of its own", "container-host": "inside the container that this program is in"}
    return f"On this machine, {holds.get(config.isolation, 'as its user')}{system}: mind what else is there."


def _python(found: PythonEnvironment) -> Iterator[str]:
    named = [f"{name} {version}" for name, version in sorted(found.packages.items()) if name not in _QUIET]
    more = f", and {len(named) - _PACKAGES} more" if len(named) > _PACKAGES else ""
    yield f"Python {found.version} ({found.python}). Installed: {', '.join(named[:_PACKAGES]) or 'nothing besides'}{more}."
    if found.venv is not None:
        ways = {"interpreter": "its own interpreter runs cells", "packages": "cells import from it too"}
        yield f"The virtual environment {found.venv} is active for commands{_also(ways.get(found.served or ''))}."


def _also(text: str | None) -> str:
    return f", and {text}" if text else ""


def _network(config: Config) -> str:
    if not config.has_network:
        return "There is no network: nothing can be downloaded, and no package index is reached."
    own = config.isolation == "container" and config.container.network == "bridge"
    return "There is a network" + (", a container's own: services of the machine are not on its loopback." if own else ".")


def _programs(config: Config, found: PythonEnvironment | None) -> Iterator[str]:
    words = found.command_prefix if found is not None and found.command_prefix else tuple(config.programs.prefix_words)
    if words:
        yield f"Every command is run behind `{shlex.join(words)}`: do not write that yourself."
    if config.isolation != "container":
        yield "System packages are not yours to install."
    elif not config.container.sudo:
        yield "There is no sudo, and system packages cannot be installed."
    elif config.has_network:
        yield "`sudo apt-get install -y NAME` installs system packages, which are gone with the container."
    else:
        yield "`sudo` works, but without a network apt-get finds no packages."


def _limits(about: Surroundings) -> str:
    said = [f"a cell may run {about.config.budgets.timeout:g} s unless a longer timeout is given"]
    if about.memory_bytes is not None:
        said.append(f"memory {size_text(about.memory_bytes)}")
    if about.cpus is not None:
        said.append(f"processors' time {about.cpus:g}")
    return f"Limits: {', '.join(said)}."


def _rules(config: Config) -> Iterator[str]:
    rules = config.rules
    if rules.dangers:
        yield "Dangerous commands (deleting the root, writing to disks, fork bombs and the like) are refused."
    for given, said in (
        (rules.allowed_commands, "Only commands that begin with a match of one of these run"),
        (rules.blocked_commands, "Commands that begin with a match of one of these do not run"),
    ):
        if given:
            yield f"{said}: {', '.join(f'`{pattern.pattern}`' for pattern in given)}."
    if rules.code is not None:
        yield f"The rules named {rules.code!r} refuse code that imports system modules, or that uses open, exec and eval."
    if forbidden := (*rules.forbidden_modules, *rules.forbidden_names):
        yield f"Code that uses these is refused: {', '.join(forbidden)}."
    if rules.ask != "never":
        yield f"A person is asked about {'every cell' if rules.ask == 'always' else 'what is refused'} before it runs."
