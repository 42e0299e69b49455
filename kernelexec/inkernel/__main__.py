"""Starts a kernel: ``python <this directory> -f CONNECTION_FILE``. Says when it serves, and vouches for every reply."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

LAUNCH = json.loads(os.environ.pop("KERNELEXEC_LAUNCH", "{}"))
os.environ.pop("JPY_PARENT_PID", None)
sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).resolve().parent)]

from ipykernel.ipkernel import IPythonKernel  # noqa: E402
from ipykernel.kernelapp import IPKernelApp  # noqa: E402


class Kernel(IPythonKernel):
    """ipykernel's own, with a token beside each reply."""

    def finish_metadata(self, parent: Any, metadata: dict[str, Any], reply_content: Any) -> dict[str, Any]:
        """Add the token and the user's names."""
        found: dict[str, Any] = super().finish_metadata(parent, metadata, reply_content)
        names = [name for name in self.shell.user_ns if name not in self.shell.user_ns_hidden and not name.startswith("_")]
        found["kernelexec"] = {"token": LAUNCH.get("token"), "names_added": names[:1000]}
        return found

    def start(self) -> None:
        """Serve, and say so."""
        super().start()
        with suppress(OSError, KeyError):
            fd = os.open(LAUNCH["ready"], os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, json.dumps({"pid": os.getpid(), "token": LAUNCH.get("token")}).encode() + b"\n")
            os.close(fd)


app = IPKernelApp.instance(kernel_class=Kernel)
app.initialize(sys.argv[1:])
app.start()
