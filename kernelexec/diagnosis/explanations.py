"""Explanations of failures: the cause and hints for each exception, end of a kernel and exit code."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kernelexec.results import Cause


@dataclass(frozen=True, slots=True)
class Explanation:
    """The cause of a failure, hints, and whether the same cell may succeed when it is run again unchanged."""

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
PACKAGES = {
    "attr": "attrs",
    "Bio": "biopython",
    "bs4": "beautifulsoup4",
    "cairosvg": "CairoSVG",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google": "google-api-python-client",
    "igraph": "python-igraph",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "ldap": "python-ldap",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
