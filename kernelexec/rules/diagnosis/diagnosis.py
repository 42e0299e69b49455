"""The diagnosis of a failed cell from outputs, exit code and the end of the kernel.

Tables have the explanations: the cause and hints for each exception, end of a kernel and exit code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from kernelexec.results import Cause, Diagnosis, Error, Interrupted, Output, Status, Stream
from kernelexec.results.outputs import last_error
from kernelexec.rules.diagnosis.traceback_lines import (
    SYNTAX,
    TREE_ERROR,
    CellSource,
    call_lines,
    group_traceback,
    is_outside_cell,
    last_line,
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of a failure, hints, and whether the same cell may succeed in a second run."""

    cause: str | None = None
    hints: tuple[str, ...] = ()
    retryable: bool = False


#: The cause and a hint for exceptions by name.
_CAUSES_AND_HINTS = {
    "NameError": ("The name is not defined in this session.", "Define the name in an earlier cell, or check its spelling."),
    "UnboundLocalError": (
        "The function assigns the name later, so it is local to it.",
        "Pass the value in, or declare it `global`.",
    ),
    "SyntaxError": ("The cell is not Python.", "Fix the marked line: nothing of the cell ran."),
    "IndentationError": (
        "The indentation fits no line before it.",
        "Fix the indentation of the marked line: nothing of the cell ran.",
    ),
    "TabError": (
        "Tabs and spaces are mixed in the indentation.",
        "Fix the indentation of the marked line: nothing of the cell ran.",
    ),
    "FileNotFoundError": (
        "There is no such file or directory.",
        "List the directory: paths are relative to the session's workspace.",
    ),
    "PermissionError": (
        "The session may not do that.",
        "Write in the session's workspace or in $TMPDIR; the options `context_paths` and `mounts` give kernels more folders.",
    ),
    "KeyError": ("There is no such key.", "Look at the keys or columns that are there."),
    "IndexError": ("There are fewer items than that.", "Check the length first."),
    "TypeError": ("A value has another type than is needed.", "Check the types of the values that the marked line uses."),
    "ValueError": ("A value has the right type but is not valid.", "Look at the values that the marked line uses."),
    "AttributeError": ("Values of that type have no such attribute.", "Check the value's type, and `dir(value)`."),
    "ZeroDivisionError": ("The divisor is zero.", "Guard against a divisor of zero."),
    "AssertionError": ("An assertion of the code does not hold.", "Look at the values that the assertion is about."),
    "RecursionError": ("Functions call each other too deep.", "Check that the recursion ends, or use a loop."),
    "UnicodeDecodeError": ("The bytes are not text in that encoding.", "Name the encoding, as in `encoding='latin-1'`."),
    "MemoryError": ("There is not that much memory.", "Work on smaller pieces, or delete objects that are no longer needed."),
    "BdbQuit": (
        "A breakpoint asked for a debugger's command, and no user is at the terminal.",
        "Remove `breakpoint()` and `%debug`, and print the values instead.",
    ),
    "StdinNotImplementedError": ("No input is available.", "input() cannot be answered here: set the value in code."),
}
#: Explanations of exceptions by name.
EXCEPTIONS: dict[str, Explanation] = {
    **{name: Explanation(cause, (hint,)) for name, (cause, hint) in _CAUSES_AND_HINTS.items()},
    "ImportError": Explanation("The module has no such name, or cannot be loaded."),
    "TimeoutError": Explanation("Something did not answer in time.", ("Try again, or wait longer.",), retryable=True),
    "ConnectionError": Explanation("A connection could not be made, or broke.", ("Try again.",), retryable=True),
}
_LOOP_RUNS = "Cells run in an event loop that is already running."
#: The cause and a hint for messages of exceptions and of programs, as Python, anyio and the C library word them. Where any text
#: may stand in between, only the first beginning of a line is tried, in an atomic group: a message may have thousands of them.
_MESSAGES = {
    r"cannot be called from a running event loop|event loop is already running|while another loop is running": (
        _LOOP_RUNS,
        "Use `await main()` instead of `asyncio.run(main())`: cells can await, as in Jupyter.",
    ),
    r"Already running asyncio in this thread": (
        _LOOP_RUNS,
        "Use `await main()` instead of `anyio.run(main)`: cells can await, as in Jupyter.",
    ),
    r"[Tt]oo many open files": (
        "The kernel's process has no file descriptors left.",
        "Close files, sockets and pipes that are no longer needed, or restart the session.",
    ),
    r"No space left on device|Disk quota exceeded": (
        "The disk is full.",
        "Delete files that are no longer needed, or write less.",
    ),
    r"Cannot allocate memory": _CAUSES_AND_HINTS["MemoryError"],
    r"can't start new thread"
    r"|^(?>.*?(?:fork|clone|Cannot start|BlockingIOError)).*Resource temporarily unavailable": (
        "The limit of processes and threads is reached.",
        "End processes and threads that are no longer needed, or use fewer workers.",
    ),
    r"Can't (?:pickle|get) (?:local object|<function <lambda>)|^(?>.*?Can't (?:pickle|get) <).*<locals>": (
        "Another process gets functions and classes by name, and this one has no name of its own.",
        "Define it with `def` or `class` at the top level of a cell, or use threads.",
    ),
    r"^(?>.*?Can't get attribute ').*' on <module '__(?:mp_)?main__'": (
        "The other process does not have that function or class of a cell: it started before the cell.",
        "Start processes after the definition, or put it into a file with `%%writefile work.py` and import that.",
    ),
    r"process in the process pool was terminated abruptly": (
        "A worker process ended: it could not load the function, was killed, or lacked memory.",
        "Look at the workers' errors in the output; put functions into a file with `%%writefile work.py` and import that.",
    ),
    r"Read-only file system": (
        "That file system cannot be written.",
        "Write in the session's workspace or in $TMPDIR.",
    ),
}
#: Explanations by patterns of messages.
MESSAGES = {re.compile(pattern, re.MULTILINE): Explanation(cause, (hint,)) for pattern, (cause, hint) in _MESSAGES.items()}
TIMEOUT_HINT = "Give it more time, or do less at once."
#: The message and explanation for each cause of a kernel's end.
KERNEL_ENDS: dict[Cause, tuple[str, Explanation]] = {
    "oom": (
        "The kernel ran out of memory.",
        Explanation(hints=("Work on smaller pieces, or give the session more memory.",)),
    ),
    "killed": ("The kernel's process was killed from outside.", Explanation(hints=("Run the cell again.",), retryable=True)),
    "crashed": (
        "The kernel's process crashed.",
        Explanation(hints=("The cause is in compiled code: isolate the call.",)),
    ),
    "exited": ("The cell ended the kernel's process.", Explanation(hints=("Remove the call that exits.",))),
    "closed": ("The session was closed.", Explanation(hints=("Run the cell in a new session.",), retryable=True)),
    "request": ("The cell was interrupted on request and had to be killed.", Explanation(retryable=True)),
    "timeout": (
        "The cell ran over its timeout and obeyed no interrupt.",
        Explanation(hints=(TIMEOUT_HINT, "Do not swallow KeyboardInterrupt.")),
    ),
}
#: Explanations of commands by exit code, as shells define them.
COMMANDS: dict[int, Explanation] = {
    126: Explanation(
        "The file is no program, or may not be executed.", ("Run it by its interpreter, or mark it as executable.",)
    ),
    127: Explanation("There is no program of that name.", ("Check its spelling, or install it.",)),
    137: Explanation("It was killed: often for want of memory.", ("Work on smaller pieces, or give the session more memory.",)),
    139: Explanation("It crashed, in compiled code."),
    143: Explanation("It was ended by SIGTERM."),
}
READ_STDERR = "Read stderr: it names the cause."
NO_NETWORK = Explanation(
    "The session has no network.",
    ("The network is off: use files in the workspace, or open the session with a network.",),
)
#: What pip and uv say when they find no package, and when they reach no index, with explanations.
NO_PACKAGE = re.compile(
    r"No matching distribution found for|Could not find a version that satisfies|No solution found when resolving"
    r"|Failed to fetch: `?https?:"
)
UNREACHED = re.compile(r"Retry\(total=0\b.{1,200}connection broken by|error sending request for url")
NO_INDEX = Explanation(
    "pip has no network here.",
    ("Install packages with the tool install_packages or with session.install: it may have a network, or takes wheels.",),
)
NO_SUCH_INDEX = replace(NO_INDEX, cause="The package index cannot be reached.")
USER_INSTALL = "Can not perform a '--user' install"
NO_USER_INSTALL = Explanation("pip installs into the session's environment, not for a user.", ("Leave `--user` out.",))
USE_PIP = "Use pip: it installs into the session's environment too."
#: Messages of programs and of Python without a network or name resolution.
OFFLINE = re.compile(
    r"Network is unreachable|[Nn]ame or service not known|Temporary failure in name resolution|[Cc]ould ?n.t resolve host"
    r"|Could not resolve host|[Nn]o address associated with hostname|nodename nor servname|Failed to resolve|getaddrinfo"
    r"|ENETUNREACH|EAI_AGAIN|unable to resolve host address"
)
#: The second group matches if the parent of the missing submodule is not a package.
MISSING_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*(?:\.\w+)*)'?(; '[\w.]+' is not a package)?")
MISSING_PROGRAM = re.compile(r"^(?:.*: )?(?:line \d+: )?([^\s:]+): (?:command )?not found$", re.MULTILINE)
#: Distributions by their modules where the names differ, as in the package index.
_PACKAGES = """
    attr:attrs Bio:biopython bs4:beautifulsoup4 cairosvg:CairoSVG Crypto:pycryptodome cv2:opencv-python-headless
    dateutil:python-dateutil docx:python-docx dotenv:python-dotenv fitz:PyMuPDF git:GitPython
    google:google-api-python-client igraph:python-igraph jose:python-jose jwt:PyJWT ldap:python-ldap magic:python-magic
    mpl_toolkits:matplotlib MySQLdb:mysqlclient OpenSSL:pyOpenSSL PIL:pillow pptx:python-pptx psycopg2:psycopg2-binary
    serial:pyserial skimage:scikit-image sklearn:scikit-learn slugify:python-slugify socks:PySocks usb:pyusb
    websocket:websocket-client yaml:PyYAML zmq:pyzmq
"""
PACKAGES = {module: name for module, _, name in (pair.partition(":") for pair in _PACKAGES.split())}


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
    """Return the diagnosis of a failed cell; None for other cells. Lines count from the start of the source.

    ``cause`` is the cause of the kernel's end during this cell, not before. ``limit`` is the exceeded memory limit as text, if
    known, ``networked`` whether the cell had a network, ``other_python`` the path of an interpreter with the missing module.
    ``loss`` describes the earlier loss of an undefined name.
    """
    if status != "error":
        return None
    # Order: the end of the kernel explains every exception before it, and a timeout the KeyboardInterrupt that follows it.
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
    """Return the undefined name of a NameError; empty for any other exception."""
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
    """Explain a missing module by its package and the installation, or by a parent without such a submodule."""
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
    """Explain a missing submodule of a present module, or of another module with the same name."""
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
    """Return the explanation of pip's or uv's output if the source of packages, or ``--user``, is the cause."""
    text = "".join(output.text for output in outputs if isinstance(output, Stream))[-_STDERR_CHARS:]
    if USER_INSTALL in text:
        return NO_USER_INSTALL
    if NO_PACKAGE.search(text) is None or (networked and UNREACHED.search(text) is None):
        return None
    return NO_SUCH_INDEX if networked else NO_INDEX


def _is_script(error: Error, installation: Explanation | None) -> bool:
    """Return whether the exception only reports a failed ``%%bash`` or ``%%sh`` cell, or a failed installation."""
    is_script = installation is not None or any("run_cell_magic(" in entry for entry in error.traceback)
    return is_script and error.ename == "CalledProcessError"


def _error_message(error: Error) -> str:
    """Return an exception's message; for a group the last line of the traceback, which names the group's exceptions too."""
    if not error.ename:  # some kernels know only that a cell failed, and an exit code
        return f"The cell failed: {error.evalue or 'it did not say why'}."
    last = error.traceback[-1].removeprefix(f"{error.ename}: ") if group_traceback(error) else ""
    return last if last.startswith(error.evalue) else error.evalue
