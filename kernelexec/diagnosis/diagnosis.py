"""A failed cell's diagnosis: made of its outputs, its exit code and what became of its kernel; nothing is asked of anybody."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace

from kernelexec.diagnosis.explanations import (
    COMMANDS,
    ENDS,
    EXCEPTIONS,
    MISSING_MODULE,
    MISSING_PROGRAM,
    NO_NETWORK,
    OFFLINE,
    PACKAGES,
    READ_STDERR,
    Meaning,
)
from kernelexec.diagnosis.source import Source
from kernelexec.diagnosis.traceback_lines import SYNTAX, TREE_ERROR, calls, is_elsewhere, tree_of, where
from kernelexec.results import Cause, Diagnosis, Error, Interrupted, Output, Status, Stream

_MESSAGE_CHARS, _STDERR_CHARS = 2000, 20_000
#: How many of the calls by which an exception came are told; of an endless recursion its first and its last ones.
_CALLS_MOST = 50
#: Exceptions that are another one, by its name, where nothing is said of them themselves.
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
) -> Diagnosis | None:
    """The diagnosis of a failed cell; None for one that did not fail. Lines count from the beginning of the source.

    ``cause`` is what ended the kernel amid this cell, not before it. ``limit`` is the limit of memory that did, in words,
    where it is known; ``networked`` says whether the cell had a network.
    """
    if status != "error":
        return None
    found = tuple(outputs)
    error = next((output for output in reversed(found) if isinstance(output, Error)), None)
    cell = Source(source)
    if cause in ENDS:
        message, meaning = ENDS[cause]
        if cause == "oom" and limit:
            message = f"The kernel ran out of memory: {limit} was reached."
        diagnosis = _diagnosis(cause, message, replace(meaning, cause=message))
    elif interrupted == "timeout":
        message = "The cell ran over its timeout."
        hints = ("Give it more time, or do less at once.",)
        diagnosis = _diagnosis("timeout", message, Meaning(message, hints, retryable=True))
    elif interrupted == "request":
        diagnosis = _diagnosis("interrupted", "The cell was interrupted on request.", Meaning(retryable=True))
    elif error is None or _is_script(error):
        return _of_command(exit_code, found, networked=networked)
    else:
        diagnosis = _of_exception(error, cell, networked=networked)
    place, came = where(error, cell), calls(error, cell)
    if len(came) > _CALLS_MOST:
        came = came[: _CALLS_MOST // 2] + came[-_CALLS_MOST // 2 :]
    line, text = (None, None) if place is None else (place.line, place.text)
    return replace(diagnosis, line=line, line_text=text, calls=came)


def _diagnosis(kind: str, message: str, meaning: Meaning, package: str | None = None) -> Diagnosis:
    said = meaning.cause, meaning.hints, meaning.retryable, package
    return Diagnosis(kind, message[:_MESSAGE_CHARS], None, None, *said)


def _of_exception(error: Error, cell: Source, *, networked: bool) -> Diagnosis:
    message, kind = _message(error), error.ename or "error"
    if tree := tree_of(error):
        failed = [Error(found[1], found[2]) for found in TREE_ERROR.finditer(tree) if found[1] not in SYNTAX]
        hints = [hint for one in failed for hint in _of_exception(one, cell, networked=networked).hints]
        return _diagnosis(kind, message, Meaning(hints=tuple(dict.fromkeys(hints))))
    if kind in ("ModuleNotFoundError", "ImportError") and (missing := MISSING_MODULE.search(error.evalue)):
        return _missing(kind, message, missing, networked=networked)
    if not networked and OFFLINE.search(error.evalue):
        return _diagnosis(kind, message, NO_NETWORK)
    if kind in SYNTAX and is_elsewhere(error, cell):
        hint = "Mend what was compiled there: the cell ran up to the marked line."
        return _diagnosis(kind, message, Meaning("What was compiled there is not Python.", (hint,)))
    alike = _KINDS.search(kind)
    general = None if alike is None else "ConnectionError" if alike["connection"] else "TimeoutError"
    return _diagnosis(kind, message, EXCEPTIONS.get(kind) or EXCEPTIONS.get(general or "") or Meaning())


def _missing(kind: str, message: str, missing: re.Match[str], *, networked: bool) -> Diagnosis:
    """That a module is not there: which package brings it, and how that is had; or that another one has no such part."""
    module = missing[1]
    if "." in module:
        return _without_part(kind, message, module, is_package=missing[2] is None)
    package = PACKAGES.get(module, module)
    named = "" if package == module else f", by the name {package}"
    hint = f"{module} is not installed in the kernel's environment: install it{named}, or do without."
    offline = (
        () if networked else ("Cells have no network: an installation of the session's own can, or takes a folder of wheels.",)
    )
    cause = f"The module {module} is not installed there."
    return _diagnosis(kind, message, Meaning(cause, (hint, *offline)), package)


def _without_part(kind: str, message: str, module: str, *, is_package: bool) -> Diagnosis:
    """That a module has no such part. Python has found it, or something of its name: else that is what it would miss."""
    whole, _, part = module.rpartition(".")
    top = module.partition(".")[0]
    elsewhere = f", in another version of {whole}, or in a package of its own" if top not in sys.stdlib_module_names else ""
    hints = (
        f"Check the name of the part: it may be in another place{elsewhere}."
        if is_package
        else f"It is a single module: `dir({whole})` says what it has, and `from {whole} import ...` gives it.",
        f"A file or directory named {top} in the workspace is found before what is installed: look whether there is one.",
    )
    cause = f"The module {whole} is there, but {'has no part' if is_package else 'is no package, and has no part'} {part}."
    return _diagnosis(kind, message, Meaning(cause, hints))


def _of_command(exit_code: int | None, outputs: tuple[Output, ...], *, networked: bool) -> Diagnosis:
    message = f"The command ended with exit code {exit_code}."
    said = "".join(output.text for output in outputs if isinstance(output, Stream))[-_STDERR_CHARS:]
    if not networked and OFFLINE.search(said):
        return _diagnosis("command", message, NO_NETWORK)
    if missing := MISSING_MODULE.search(said):
        return _missing("command", message, missing, networked=networked)
    known = COMMANDS.get(exit_code or 0, Meaning())
    if exit_code == 127 and (program := MISSING_PROGRAM.search(said)):  # noqa: PLR2004 - the shell's own
        known = replace(known, cause=f"There is no program {program[1]}.")
    return _diagnosis("command", message, replace(known, hints=known.hints or (READ_STDERR,)))


def _is_script(error: Error) -> bool:
    """Whether the exception only says that a ``%%bash`` or ``%%sh`` cell failed."""
    return error.ename == "CalledProcessError" and any("run_cell_magic(" in entry for entry in error.traceback)


def _message(error: Error) -> str:
    """What an exception says of itself; of a group its traceback's last line, which names its exceptions too."""
    if not error.ename:  # some kernels know only that a cell failed, and an exit code
        return f"The cell failed: {error.evalue or 'it did not say why'}."
    named = error.traceback[-1].removeprefix(f"{error.ename}: ") if tree_of(error) else ""
    return named if named.startswith(error.evalue) else error.evalue
