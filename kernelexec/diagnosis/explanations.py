"""What failures mean, kind by kind: why they happen, in short, and what to try next."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelexec.results import Cause


@dataclass(frozen=True, slots=True)
class Meaning:
    """Why it failed, what to try, and whether the same may succeed when it is tried again as it is."""

    cause: str | None = None
    hints: tuple[str, ...] = ()
    retryable: bool = False


_NOTHING_RAN = "nothing of the cell ran."
#: Of exceptions, by their names.
EXCEPTIONS: dict[str, Meaning] = {
    "NameError": Meaning(
        "The name is not defined in this session.", ("Define the name in an earlier cell, or check its spelling.",)
    ),
    "UnboundLocalError": Meaning(
        "The function assigns the name later, so it is local to it.", ("Pass the value in, or declare it `global`.",)
    ),
    "SyntaxError": Meaning("The cell is not Python.", (f"Mend the marked line: {_NOTHING_RAN}",)),
    "IndentationError": Meaning(
        "The indentation fits no line before it.", (f"Mend the indentation of the marked line: {_NOTHING_RAN}",)
    ),
    "TabError": Meaning(
        "Tabs and spaces are mixed in the indentation.", (f"Mend the indentation of the marked line: {_NOTHING_RAN}",)
    ),
    "ImportError": Meaning("The module has no such name, or cannot be loaded."),
    "FileNotFoundError": Meaning(
        "There is no such file or directory.", ("List the directory: paths are relative to the session's workspace.",)
    ),
    "PermissionError": Meaning(
        "The session may not do that.",
        ("Write in the session's workspace or in $TMPDIR; on this machine the option `confinement` allows more.",),
    ),
    "KeyError": Meaning("There is no such key.", ("Look at the keys or columns that are there.",)),
    "IndexError": Meaning("There are fewer items than that.", ("Check the length first.",)),
    "TypeError": Meaning(
        "A value has another type than is needed.", ("Check the types of the values that the marked line uses.",)
    ),
    "ValueError": Meaning(
        "A value of the right type is not one that can be taken.", ("Look at the values that the marked line uses.",)
    ),
    "AttributeError": Meaning("Values of that type have no such attribute.", ("Check the value's type, and `dir(value)`.",)),
    "ZeroDivisionError": Meaning("The divisor is zero.", ("Guard against a divisor of zero.",)),
    "AssertionError": Meaning("What the code asserts does not hold.", ("Look at the values that the assertion is about.",)),
    "RecursionError": Meaning("Functions call each other too deep.", ("Check that the recursion ends, or use a loop.",)),
    "UnicodeDecodeError": Meaning(
        "The bytes are not text in that encoding.", ("Name the encoding, as in `encoding='latin-1'`.",)
    ),
    "MemoryError": Meaning("There is not that much memory.", ("Work on smaller pieces, or delete what is no longer needed.",)),
    "TimeoutError": Meaning("Something did not answer in time.", ("Try again, or wait longer.",), retryable=True),
    "ConnectionError": Meaning("A connection could not be made, or broke.", ("Try again.",), retryable=True),
    "StdinNotImplementedError": Meaning("There is nobody to ask.", ("Nobody can answer input(): set the value in code.",)),
}
#: Of ends of the kernel, with what is said of them.
ENDS: dict[Cause, tuple[str, Meaning]] = {
    "oom": (
        "The kernel ran out of memory.",
        Meaning(hints=("Work on smaller pieces, or give the session more memory.",)),
    ),
    "killed": ("The kernel's process was killed from outside.", Meaning(hints=("Run the cell again.",), retryable=True)),
    "crashed": (
        "The kernel's process crashed.",
        Meaning(hints=("The cause is in compiled code: isolate the call.",)),
    ),
    "exited": ("The cell ended the kernel's process.", Meaning(hints=("Remove the call that exits.",))),
    "request": ("The cell was interrupted on request and had to be killed.", Meaning(retryable=True)),
    "timeout": (
        "The cell ran over its timeout and obeyed no interrupt.",
        Meaning(hints=("Give it more time, or do less at once.", "Do not swallow KeyboardInterrupt.")),
    ),
}
#: Of commands, by their exit codes, as shells give them.
COMMANDS: dict[int, Meaning] = {
    126: Meaning("The file is no program, or may not be executed.", ("Run it by its interpreter, or mark it as executable.",)),
    127: Meaning("There is no program of that name.", ("Check its spelling, or install it.",)),
    137: Meaning("It was killed: often for want of memory.", ("Work on smaller pieces, or give the session more memory.",)),
    139: Meaning("It crashed, in compiled code."),
    143: Meaning("It was ended by SIGTERM."),
}
READ_STDERR = "Read stderr: the command says there what it missed."
NO_NETWORK = Meaning(
    "The session has no network.",
    ("The network is off: use what is in the workspace, or have the session made with one.",),
)
#: What programs and Python say where no network is, or no name can be looked up.
OFFLINE = re.compile(
    r"Network is unreachable|[Nn]ame or service not known|Temporary failure in name resolution|[Cc]ould ?n.t resolve host"
    r"|Could not resolve host|[Nn]o address associated with hostname|nodename nor servname|Failed to resolve|getaddrinfo"
    r"|ENETUNREACH|EAI_AGAIN|unable to resolve host address"
)
#: The second group where it was to be a part of what is no package.
MISSING_MODULE = re.compile(r"No module named '?([A-Za-z_]\w*(?:\.\w+)*)'?(; '[\w.]+' is not a package)?")
MISSING_PROGRAM = re.compile(r"^(?:.*: )?(?:line \d+: )?([^\s:]+): (?:command )?not found$", re.MULTILINE)
#: Packages by the modules that they bring, where the names differ; as the package index has them.
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
