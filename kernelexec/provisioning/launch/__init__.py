"""The start of a kernel: kernelspec, environment, secrets, and one-shot tasks.

This module has the launcher's path and the options of Python for imports from the standard library only. Other modules use
both without loading the rest of a start.
"""

from __future__ import annotations

from pathlib import Path

#: The directory that Python runs as a program.
LAUNCHER = Path(__file__).resolve().parents[2] / "launcher"
#: Options of the Python that runs the guard, which must import the standard library only, whatever its environment says: -I
#: ignores PYTHON* variables, the user's packages and the working directory; -S also .pth files, which can run code.
GUARD = ("-I", "-S")
#: Variables of the system's loader, Python and OpenSSL with search paths, separated as in PATH.
LOADER_VARIABLES = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE"),
)
