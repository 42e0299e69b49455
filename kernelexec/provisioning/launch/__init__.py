"""The start of a kernel: its kernelspec, its environment, its secrets, and one-shot tasks.

Here are the launcher's program, and how Python runs it where only the standard library may be imported: modules need them that
import nothing else of a start.
"""

from __future__ import annotations

from pathlib import Path

#: The directory that Python runs as a program.
LAUNCHER = Path(__file__).resolve().parents[2] / "launcher"
#: Options of the Python that runs the guard, which must import the standard library only, whatever its environment says.
GUARD = ("-I", "-S")
#: Variables of the system's loader, Python and OpenSSL with search paths, separated as in PATH.
LOADER_VARIABLES = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE"),
)
