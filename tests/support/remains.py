"""What is left behind: processes, descriptors, directories, as the machine itself tells."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from kernelexec import Session

#: A variable that every process of one test module inherits: modules, of one run or of several at once, do not see each other.
#: A fork server that starts early, and so the first environment of its kernels, has only variables with names such as Python's.
RUN = "PYTHON_KERNELEXEC_TEST_RUN"


def processes_of(owner: int) -> list[psutil.Process]:
    """The living descendants of a process."""
    return [process for process in psutil.Process(owner).children(recursive=True) if process.status() != psutil.STATUS_ZOMBIE]


def marked_processes() -> dict[int, str]:
    """Every process that a kernel of this test module is or has started, wherever it went, with its command line."""
    actual = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = (entry / "environ").read_bytes()
            if b"KERNELEXEC_KERNEL=" in environ and f"{RUN}={os.environ[RUN]}".encode() in environ.split(b"\0"):
                actual[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return actual


def kernel_processes() -> dict[int, str]:
    """The same without fork servers, which are their executors' and no session's."""
    return {pid: command for pid, command in marked_processes().items() if "--forkserver" not in command}


def process_of(session: Session, pid: int) -> int:
    """The id by which this test knows the process that a session's cells, in their own namespace perhaps, know by ``pid``."""
    namespace = session.execute("import os; print(os.readlink('/proc/self/ns/pid'))").stdout.strip()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str((entry / "ns/pid").readlink()) == namespace:
                lines = (entry / "status").read_text(errors="replace").splitlines()
                if next(line.split()[-1] for line in lines if line.startswith("NSpid:")) == str(pid):
                    return int(entry.name)
        except OSError:
            continue
    raise ProcessLookupError(pid)


def descriptors() -> dict[str, int]:
    """What this process holds open, by kind: how many sockets, pipes, files."""
    actual: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink()).partition(":")[0]
        except OSError:
            continue
        kind = "file" if target.startswith("/") else target
        actual[kind] = actual.get(kind, 0) + 1
    return actual


def runtime_directories() -> set[Path]:
    """The executors' private directories of this test module that are there."""
    return set(Path(os.environ["KERNELEXEC_RUNTIME_DIR"]).glob("kx-*"))
