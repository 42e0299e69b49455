"""Prompts for models: the description of the environment for a system prompt, and the prompt to debug a failed cell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelexec.config import Config
from kernelexec.results.usage import format_size
from kernelexec.text import clean_text, cut_middle

if TYPE_CHECKING:
    from kernelexec.results import Diagnosis, ExecutionResult, PythonEnvironment

#: The limit of named packages, and the limits of quoted code and text in bytes.
_PACKAGES, _CODE_BYTES, _TEXT_BYTES = 150, 20_000, 8_000
#: Packages that are not listed: they serve the kernel itself.
_UNLISTED_PACKAGES = frozenset(
    {"ipykernel", "ipython", "jupyter-client", "jupyter-core", "traitlets", "pyzmq", "tornado", "comm", "pip"}
)
#: Packages that a model asks for most: they are listed first, since only so many are listed.
_ASKED_FOR = (
    *("numpy", "pandas", "polars", "pyarrow", "scipy", "scikit-learn", "statsmodels", "sympy", "networkx", "duckdb"),
    *("matplotlib", "seaborn", "plotly", "altair", "bokeh", "pillow", "opencv-python", "openpyxl", "torch", "tensorflow"),
    *("transformers", "requests", "httpx", "beautifulsoup4", "lxml", "pyyaml", "pydantic", "sqlalchemy", "pytest"),
)

EXECUTION_DISABLED = (
    "Code execution is switched off here: nothing that you write is run. Do not claim that you have run anything."
)
_STATE_RULE = """\
What you run stays: variables, imports and functions last from cell to cell, until the kernel is replaced, which the result \
then says (state lost; with state restored variables are as before the cell that it names). After a failure or a timeout \
with state kept, continue from there: fix the failed part, and do not run the rest again."""
_ANSWER_RULES = (
    "Explain the results in your answer: its reader does not see the output of your code.",
    "Name the files that you created, by their paths, and do not paste their contents.",
    "Put the findings and the reasoning into the answer itself, not only into files.",
)
_REQUIREMENTS_RULE = "If your files need packages, add a requirements.txt that names them with their versions."
_STEPS = """\
1. Analyse: what does the failing line do, and what did it get?
2. Root cause: say which assumption was wrong, and where it was made; the line that failed is often not the one to fix.
3. Fix: say what has to change, and why that removes the cause and not only the message.
4. Corrected code: write it out whole, ready to run; do not repeat what has run and is kept.
5. Explain: say how to see that it works, and how to keep it from coming back."""


@dataclass(frozen=True, slots=True)
class PromptContext:
    """The known facts about a session; unknown facts are None."""

    config: Config
    cwd: str | None = None
    """The workspace as seen by code; None for several workspaces."""
    environment: PythonEnvironment | None = None
    """The kernel's Python environment; None if no kernel is alive."""
    context: tuple[str, ...] = ()
    """The paths of ``context_paths`` in order, as code sees them; if empty, as they are on this machine."""
    memory_bytes: int | None = None
    cpus: float | None = None


def write_guidance(context: PromptContext, *, requirements: bool = False) -> str:
    """Return text for a system prompt: the environment of the code, and rules for the answer.

    Args:
        context: the facts about the session.
        requirements: whether to ask for a ``requirements.txt`` with the delivered files.
    """
    if not context.config.enabled:
        return EXECUTION_DISABLED
    answers = [*_ANSWER_RULES, *([_REQUIREMENTS_RULE] if requirements else [])]
    sections = {"Where your code runs": [_STATE_RULE, *_environment_lines(context)], "Rules for your answer": answers}
    return "\n\n".join("\n".join((f"## {title}", *(f"- {line}" for line in lines))) for title, lines in sections.items()) + "\n"


def write_debug_prompt(code: str, result: ExecutionResult) -> str:
    """Return a prompt to fix a failed cell: the code, its output, the known cause, and five steps."""
    facts = list(_diagnosis_lines(result.diagnosis)) if result.diagnosis is not None else []
    state = {
        "kept": "All variables are kept.",
        "new": "The kernel is new: variables and imports of an earlier session are not there.",
        "restored": "The kernel ended, and the session went back to a checkpoint: what this cell changed is undone.",
        "lost": "The kernel was replaced: variables and imports are gone.",
    }
    sections = [
        "This cell failed. Find the cause, and fix it.",
        _quote("Code", code, _CODE_BYTES, "python" if result.language == "python" else result.language),
        _quote("Output", result.text, _TEXT_BYTES),
        "\n".join(
            [f"Exit code {result.exit_code}. {state.get(result.state, 'Whether the state is kept is unknown.')}", *facts]
        ),
        f"Go by these five steps:\n{_STEPS}",
    ]
    return "\n\n".join(sections) + "\n"


def _quote(title: str, text: str, limit_bytes: int, language: str = "") -> str:
    shown = cut_middle(clean_text(text).rstrip("\n"), limit_bytes) or "(nothing)"
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", shown))])  # longer than each run in the text
    return f"{title}:\n{fence}{language}\n{shown}\n{fence}"


def _diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.cause:
        yield f"Cause: {diagnosis.cause}"
    if diagnosis.line is not None:
        yield f"Line {diagnosis.line} of the cell: {diagnosis.line_text or ''}".rstrip(": ")
    for call in diagnosis.calls[:-1]:
        yield f"By line {call.line} of cell {call.cell}{f', in {call.function}' if call.function else ''}: {call.text or ''}"
    for hint in diagnosis.hints:
        yield f"Hint: {hint}"
    if diagnosis.retryable:
        yield "The same cell may succeed as it is."


def _environment_lines(context: PromptContext) -> Iterator[str]:
    config, environment = context.config, context.environment
    yield _isolation_line(config, environment)
    if context.cwd is not None:
        yield f"Your workspace, where cells and commands begin: {context.cwd}. Write files there, by relative paths."
    paths = context.context or tuple(str(option.path) for option in config.context_paths)
    for path, option in zip(paths, config.context_paths, strict=True):
        yield f"You also see {path}, {'to write too' if option.permission == 'write' else 'to read only'}."
    if environment is not None:
        yield from _python_lines(environment)
    yield _network_line(config)
    yield from _program_lines(config, environment)
    yield _limits_line(context)
    yield from _rule_lines(config)


def _isolation_line(config: Config, environment: PythonEnvironment | None) -> str:
    system = f", {environment.system}" if environment is not None and environment.system else ""
    if config.isolation == "container":
        image = " or ".join(config.container.image)
        once = " Each cell has a new one: no variable lasts." if config.container.mode == "ephemeral" else ""
        return f"In a container of the image {image}{system}.{once}"
    descriptions = {"bubblewrap": "in namespaces of its own", "container-host": "inside the container that this program is in"}
    where = descriptions.get(config.isolation, "as its user")
    return f"On this machine, {where}{system}: take care of other files and processes there."


def _python_lines(environment: PythonEnvironment) -> Iterator[str]:
    ranks = {name: rank for rank, name in enumerate(_ASKED_FOR)}
    versions = sorted(environment.packages.items(), key=lambda item: (ranks.get(item[0], len(ranks)), item[0]))
    packages = [f"{name} {version}" for name, version in versions if name not in _UNLISTED_PACKAGES]
    more = f", and {len(packages) - _PACKAGES} more" if len(packages) > _PACKAGES else ""
    installed = ", ".join(packages[:_PACKAGES]) or "no others"
    yield f"Python {environment.version} ({environment.python}). Installed: {installed}{more}."
    if environment.venv is not None and environment.served != "own":
        ways = {"interpreter": "its own interpreter runs cells", "packages": "cells import from it first"}
        way = ways.get(environment.served or "")
        yield f"The virtual environment {environment.venv} is active for commands{f', and {way}' if way else ''}."


def _network_line(config: Config) -> str:
    if not config.has_network:
        return "There is no network: nothing can be downloaded, and no package index is reached."
    if config.isolation == "container" and config.container.network == "bridge":
        return "There is a network, a container's own: services of the machine are not on its loopback."
    return "There is a network."


def _program_lines(config: Config, environment: PythonEnvironment | None) -> Iterator[str]:
    if prefix := (environment.command_prefix if environment is not None else ()) or config.programs.prefix_words:
        yield f"Every command is run behind `{shlex.join(prefix)}`: do not write that yourself."
    if config.isolation != "container":
        yield "System packages are not yours to install."
    elif not config.container.sudo:
        yield "There is no sudo, and system packages cannot be installed."
    elif config.has_network:
        yield "`sudo apt-get install -y NAME` installs system packages, which are gone with the container."
    else:
        yield "`sudo` works, but without a network apt-get finds no packages."


def _limits_line(context: PromptContext) -> str:
    limits = [f"a cell may run {context.config.budgets.timeout:g} s unless a longer timeout is given"]
    if context.memory_bytes is not None:
        limits.append(f"memory {format_size(context.memory_bytes)}")
    if context.cpus is not None:
        limits.append(f"processors' time {context.cpus:g}")
    return f"Limits: {', '.join(limits)}."


def _rule_lines(config: Config) -> Iterator[str]:
    rules = config.rules
    if rules.dangers:
        yield "Dangerous commands (deleting the root, writing to disks, fork bombs and the like) are refused."
    for patterns, sentence in (
        (rules.allowed_commands, "Only commands that begin with a match of one of these run"),
        (rules.blocked_commands, "Commands that begin with a match of one of these do not run"),
    ):
        if patterns:
            yield f"{sentence}: {', '.join(f'`{pattern.pattern}`' for pattern in patterns)}."
    if rules.code is not None:
        yield f"The rules named {rules.code!r} refuse code that imports system modules, or that uses open, exec and eval."
    if rules.forbidden_modules:
        yield f"Code that uses these is refused: {', '.join(rules.forbidden_modules)}."
    if rules.ask != "never":
        yield f"A person is asked about {'every cell' if rules.ask == 'always' else 'refused cells'} before it runs."
