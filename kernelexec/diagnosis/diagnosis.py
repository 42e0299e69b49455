"""The diagnosis of a failed cell from its outputs, its exit code and the end of its kernel."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from kernelexec.diagnosis.explanations import (
    COMMANDS,
    EXCEPTIONS,
    KERNEL_ENDS,
    MESSAGES,
    MISSING_MODULE,
    MISSING_PROGRAM,
    NO_INDEX,
    NO_NETWORK,
    NO_PACKAGE,
    NO_SUCH_INDEX,
    NO_USER_INSTALL,
    OFFLINE,
    PACKAGES,
    READ_STDERR,
    TIMEOUT_HINT,
    UNREACHED,
    USE_PIP,
    USER_INSTALL,
    Explanation,
)
from kernelexec.diagnosis.traceback_lines import (
    SYNTAX,
    TREE_ERROR,
    CellSource,
    call_lines,
    group_traceback,
    is_outside_cell,
    last_line,
)
from kernelexec.results import Cause, Diagnosis, Error, Interrupted, Output, Status, Stream
from kernelexec.results.outputs import last_error

_MESSAGE_CHARS, _STDERR_CHARS, _PATH_CHARS = 2000, 20_000, 300
#: How many exceptions of a group are explained, the first ones.
_GROUP_MAX = 50
#: The end of a failed command's output, which names the cause.
_ENDING_CHARS = 1000
#: The limit of call lines; of an endless recursion the first and the last ones are kept.
_CALLS_MAX = 50
_UNDEFINED = re.compile(r"name '([^']{1,1000})' is not defined")
#: Frames of a debugger, and the message of ``%debug``.
_DEBUGGER = re.compile(r"debugger's commands|[/\\](?:pdb|bdb|debugger)\.py")
#: Names of exceptions that get a general explanation if they have none of their own.
_KINDS = re.compile(r"(?P<connection>Connection|Connect|URLError|gaierror|ProxyError|SSLError)|(?P<timeout>Timeout)")


def diagnose(
    status: Status,
    exit_code: int | None,
    interrupted: Interrupted | None,
    cause: Cause | None,
    outputs: Iterable[Output],
    source: str = "",
    *,
    limit: str = "",
    networked: bool = True,
    other_python: str = "",
    loss: str = "",
) -> Diagnosis | None:
    """Return the diagnosis of a failed cell; None for one that did not fail. Lines count from the start of the source.

    ``cause`` is the cause of the kernel's end during this cell, not before it. ``limit`` is the exceeded memory limit as
    text, if known; ``networked`` says whether the cell had a network; ``other_python`` is the path of an interpreter that
    has the missing module; ``loss`` says that an undefined name was lost before, and how.
    """
    if status != "error":
        return None
    all_outputs = tuple(outputs)
    error = last_error(all_outputs)
    cell = CellSource(source)
    if cause in KERNEL_ENDS:
        message, explanation = KERNEL_ENDS[cause]
        if cause == "oom" and limit:
            message = f"The kernel ran out of memory: {limit} was reached."
        diagnosis = _make_diagnosis(cause, message, replace(explanation, cause=message))
    elif interrupted == "timeout":
        message = "The cell ran over its timeout."
        diagnosis = _make_diagnosis("timeout", message, Explanation(message, (TIMEOUT_HINT,), retryable=True))
    elif interrupted == "request":
        diagnosis = _make_diagnosis("interrupted", "The cell was interrupted on request.", Explanation(retryable=True))
    elif error is None or _is_script(error, _explain_installation(all_outputs, networked=networked)):
        return _explain_command(exit_code, all_outputs, networked=networked)
    else:
        diagnosis = _explain_exception(error, cell, networked=networked)
        if error.ename == "ModuleNotFoundError" and other_python.isprintable() and 0 < len(other_python) <= _PATH_CHARS:
            hint = f"{other_python!r} has it, but is not the kernel's Python: `sys.executable` is."
            diagnosis = replace(diagnosis, hints=(*diagnosis.hints, hint))
        is_in_fence = error.ename in SYNTAX and re.search(r"(?m)^ *(```|~~~)", source.partition('"""')[0].partition("'''")[0])
        fence_hint = ("The code is in a Markdown fence: send only what is inside.",)
        diagnosis = replace(diagnosis, hints=fence_hint) if is_in_fence else diagnosis
        if loss:
            diagnosis = replace(diagnosis, hints=(f"{loss}: run the cells again that define it.",))
    last, calls = last_line(error, cell), call_lines(error, cell)
    if len(calls) > _CALLS_MAX:
        calls = calls[: _CALLS_MAX // 2] + calls[-_CALLS_MAX // 2 :]
    line, text = (None, None) if last is None else (last.line, last.text)
    return replace(diagnosis, line=line, line_text=text, calls=calls)


def find_undefined_name(error: Error | None) -> str:
    """Return the name that an exception says is not defined; empty for any other exception."""
    match = _UNDEFINED.match(error.evalue) if error is not None and error.ename == "NameError" else None
    return match[1] if match else ""


def _make_diagnosis(kind: str, message: str, explanation: Explanation, package: str | None = None) -> Diagnosis:
    details = explanation.cause, explanation.hints, explanation.retryable, package
    return Diagnosis(kind, message[:_MESSAGE_CHARS], None, None, *details)


def _explain_exception(error: Error, cell: CellSource, *, networked: bool) -> Diagnosis:
    error = replace(error, evalue=error.evalue[:_MESSAGE_CHARS])  # before any pattern reads it
    message, kind = _error_message(error), error.ename or "error"
    if tree := group_traceback(error):
        explained = (Error(match[1], match[2]) for match in TREE_ERROR.finditer(tree) if match[1] not in SYNTAX)
        failed = islice(explained, _GROUP_MAX)
        hints = [hint for error in failed for hint in _explain_exception(error, cell, networked=networked).hints]
        return _make_diagnosis(kind, message, Explanation(hints=tuple(dict.fromkeys(hints))))
    if kind in ("ModuleNotFoundError", "ImportError") and (missing := MISSING_MODULE.search(error.evalue)):
        return _explain_missing_module(kind, message, missing, networked=networked)
    if not networked and OFFLINE.search(error.evalue):
        return _make_diagnosis(kind, message, NO_NETWORK)
    if kind in SYNTAX and is_outside_cell(error, cell):
        hint = "Fix the code that was compiled there: the cell ran up to the marked line."
        return _make_diagnosis(kind, message, Explanation("The code that was compiled there is not Python.", (hint,)))
    return _make_diagnosis(kind, message, _explain_message(f"{kind}: {message}"[:_MESSAGE_CHARS]) or _explain_kind(kind, error))


def _explain_kind(kind: str, error: Error) -> Explanation:
    """Return the explanation of an exception by its name."""
    if kind == "StdinNotImplementedError" and any(_DEBUGGER.search(entry) for entry in (error.evalue, *error.traceback)):
        return EXCEPTIONS["BdbQuit"]
    similar = _KINDS.search(kind)
    general = None if similar is None else "ConnectionError" if similar["connection"] else "TimeoutError"
    return EXCEPTIONS.get(kind) or EXCEPTIONS.get(general or "") or Explanation()


def _explain_message(message: str) -> Explanation | None:
    return next((explanation for pattern, explanation in MESSAGES.items() if pattern.search(message)), None)


def _explain_missing_module(kind: str, message: str, missing: re.Match[str], *, networked: bool) -> Diagnosis:
    """Explain a missing module: its package and how to install it, or that its parent has no such submodule."""
    module = missing[1]
    if "." in module:
        return _explain_missing_submodule(kind, message, module, is_package=missing[2] is None)
    package = PACKAGES.get(module, module)
    name_note = "" if package == module else f", by the name {package}"
    hint = f"{module} is not installed in the kernel's environment: install it{name_note}, or do without."
    offline = (
        () if networked else ("Cells have no network: an installation of the session's own can, or takes a folder of wheels.",)
    )
    cause = f"The module {module} is not installed there."
    return _make_diagnosis(kind, message, Explanation(cause, (hint, *offline)), package)


def _explain_missing_submodule(kind: str, message: str, module: str, *, is_package: bool) -> Diagnosis:
    """Explain a missing submodule of a module that Python has found, or of another one with the same name."""
    parent, _, submodule = module.rpartition(".")
    top = module.partition(".")[0]
    elsewhere = f", in another version of {parent}, or in a package of its own" if top not in sys.stdlib_module_names else ""
    hints = (
        f"Check the name of the part: it may be in another place{elsewhere}."
        if is_package
        else f"It is a single module: `dir({parent})` lists its names, and `from {parent} import ...` gives it.",
        f"A file or directory named {top} in the workspace hides the installed one: check whether there is one.",
    )
    cause = (
        f"The module {parent} is there, but {'has no part' if is_package else 'is no package, and has no part'} {submodule}."
    )
    return _make_diagnosis(kind, message, Explanation(cause, hints))


def _explain_command(exit_code: int | None, outputs: tuple[Output, ...], *, networked: bool) -> Diagnosis:
    message = f"The command ended with exit code {exit_code}."
    text = "".join(output.text for output in outputs if isinstance(output, Stream))[-_STDERR_CHARS:]
    if (installation := _explain_installation(outputs, networked=networked)) is not None:
        return _make_diagnosis("command", message, installation)
    if not networked and OFFLINE.search(text):
        return _make_diagnosis("command", message, NO_NETWORK)
    if missing := MISSING_MODULE.search(text):
        return _explain_missing_module("command", message, missing, networked=networked)
    explanation = _explain_message(text[-_ENDING_CHARS:]) or COMMANDS.get(exit_code or 0, Explanation())
    if explanation is COMMANDS[127] and (program := MISSING_PROGRAM.search(text)):
        hints = (USE_PIP,) if program[1] == "uv" else explanation.hints
        explanation = replace(explanation, cause=f"There is no program {program[1]}.", hints=hints)
    return _make_diagnosis("command", message, replace(explanation, hints=explanation.hints or (READ_STDERR,)))


def _explain_installation(outputs: tuple[Output, ...], *, networked: bool) -> Explanation | None:
    """Return the explanation of the output of pip or uv if the source of packages, or ``--user``, is the cause."""
    text = "".join(output.text for output in outputs if isinstance(output, Stream))[-_STDERR_CHARS:]
    if USER_INSTALL in text:
        return NO_USER_INSTALL
    if NO_PACKAGE.search(text) is None or (networked and UNREACHED.search(text) is None):
        return None
    return NO_SUCH_INDEX if networked else NO_INDEX


def _is_script(error: Error, installation: Explanation | None) -> bool:
    """Return whether the exception only reports the failure of a ``%%bash`` or ``%%sh`` cell, or of a failed installation."""
    is_script = installation is not None or any("run_cell_magic(" in entry for entry in error.traceback)
    return is_script and error.ename == "CalledProcessError"


def _error_message(error: Error) -> str:
    """Return an exception's message; for a group the last line of its traceback, which names its exceptions too."""
    if not error.ename:  # some kernels know only that a cell failed, and an exit code
        return f"The cell failed: {error.evalue or 'it did not say why'}."
    last = error.traceback[-1].removeprefix(f"{error.ename}: ") if group_traceback(error) else ""
    return last if last.startswith(error.evalue) else error.evalue
