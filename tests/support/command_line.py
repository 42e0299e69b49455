"""The command as it is installed, run to its end or started, and the files that it takes and leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

COMMAND = str(Path(sys.executable).with_name("kernelexec"))
LOCAL = ("--isolation", "local")
#: What a server or a prompt takes that imports no large libraries.
NO_PRELOAD = ("--config", str(Path(__file__).with_name("no_preload.yaml")))
#: The options of a server on this machine; a later ``--config`` replaces its file.
LOCAL_SERVER = (*LOCAL, "--tools", "all", *NO_PRELOAD)
#: What a command takes too, where a cell obeys no interrupt: then its end need not wait for a second at each step.
IMPATIENT = ("--config", str(Path(__file__).with_name("impatient.yaml")))
BOUND = 120.0
#: An engine that is not there, as ``DOCKER_HOST``.
AWAY = "unix:///no/such/socket"
SWALLOW = "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
WAITS = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n"
#: Signals that end a server; None is the end of its stdin.
ENDS = [signal.SIGTERM, signal.SIGINT, None]
#: The exit status of a server by what ends it.
END_STATUS = {signal.SIGTERM: 0, signal.SIGINT: 128 + signal.SIGINT, None: 0}
#: A cell that starts a process in a session of its own, shows that it runs by a file, and obeys no interrupt.
STUBBORN = (
    "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nopen('begun', 'w').close()\n"
    "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
)


def environment(**more: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.endswith("_USE_DOCKER")} | more


def kernelexec(cwd: Path, *args: str, stdin: bytes = b"", via: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """The command's end; ``via`` is a line of shell that runs it as ``"$@"``."""
    words = ["sh", "-c", via, "sh", COMMAND, *args] if via else [COMMAND, *args]
    done = subprocess.run(words, cwd=cwd, input=stdin, env=environment(**env), capture_output=True, check=False, timeout=BOUND)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@contextmanager
def started(cwd: Path, *args: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([COMMAND, *args], cwd=cwd, env=environment(**env), stdout=pipe, stderr=pipe, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str], name: str = "stdout") -> str:
    stream = getattr(process, name)
    return str(stream.readline())


def until(process: subprocess.Popen[str], message: str) -> None:
    """Read stderr up to a line."""
    for line in iter(lambda: next_line(process, "stderr"), ""):
        if message in line:
            return
    pytest.fail(f"never said: {message}")


def appears(process: subprocess.Popen[str], path: Path) -> None:
    """Wait for a file while the command runs."""
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


def cells_of(path: Path) -> Any:
    """The code cells of a notebook that is valid."""
    text = path.read_text(encoding="utf-8")
    nbformat.validate(json.loads(text))
    return [cell for cell in nbformat.reads(text, as_version=nbformat.NO_CONVERT).cells if cell.cell_type == "code"]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def script(cwd: Path, *sources: str) -> str:
    (cwd / "given.py").write_text("\n# %%\n".join(sources))
    return "given.py"


def notebook(cwd: Path, *sources: str, tags: Sequence[str] = ()) -> str:
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)}) for source in sources]
    actual = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# T"), *cells])
    (cwd / "given.ipynb").write_text(nbformat.writes(actual))
    return "given.ipynb"


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the command's refusal: one line of its own beside the one about isolation."""
    assert (done.returncode, done.stdout) == (125, "")
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("kernelexec: code runs on this machine")]
    assert line.startswith("kernelexec: ")
    return line
