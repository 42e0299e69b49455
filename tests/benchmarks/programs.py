"""Whole programs compared with each other: imports, helps, one cell, one notebook, from the start of a process to its end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import nbformat

from tests.benchmarks.sessions import Found

_PLAIN = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
client.execute_interactive("1+1", timeout=60)
client.stop_channels()
manager.shutdown_kernel()
"""
_LOCAL = ["--isolation", "local", "--quiet"]
_TOOL = str(Path(sys.executable).with_name("{}"))


def _tool(name: str, *words: str) -> list[str]:
    return [_TOOL.format(name), *words]


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


#: Programs by what they are for; the first one of each is the base of the ratios.
PROGRAMS: dict[str, dict[str, list[str]]] = {
    "import": {
        "import jupyter_client": _python("import jupyter_client"),
        "import kernelexec": _python("import kernelexec"),
        "from kernelexec import Executor": _python("from kernelexec import Executor"),
        "import nbclient": _python("import nbclient"),
        "import papermill": _python("import papermill"),
        "from e2b_code_interpreter import Sandbox": _python("from e2b_code_interpreter import Sandbox"),
    },
    "help": {
        "jupyter execute --help": _tool("jupyter", "execute", "--help"),
        "kernelexec --version": _tool("kernelexec", "--version"),
        "kernelexec --help": _tool("kernelexec", "--help"),
        "kernelexec exec --help": _tool("kernelexec", "exec", "--help"),
        "papermill --help": _tool("papermill", "--help"),
    },
    "one cell, 1+1": {
        "jupyter_client, a script": _python(_PLAIN),
        "kernelexec exec": _tool("kernelexec", "exec", "1+1", *_LOCAL),
    },
    "a notebook of one cell": {
        "jupyter execute": _tool("jupyter", "execute", "n.ipynb"),
        "kernelexec run": _tool("kernelexec", "run", "n.ipynb", "--no-output", *_LOCAL),
        "papermill": _tool("papermill", "n.ipynb", "o.ipynb", "--no-progress-bar"),
    },
}
#: The peers that may be missing, by the module of each.
_OPTIONAL = {"from e2b_code_interpreter import Sandbox": "e2b_code_interpreter"}


def measure_programs(rounds: int, *, warm_up: bool = True) -> dict[str, Found]:
    """Run all programs in rounds, in an order that rotates; return the milliseconds of each.

    ``warm_up`` adds a round that fills the caches of the system first.
    """
    missing = {name for name, module in _OPTIONAL.items() if find_spec(module) is None}
    jobs = [(title, name) for title, programs in PROGRAMS.items() for name in programs if name not in missing]
    actual: dict[str, Found] = {title: {} for title in PROGRAMS}
    with tempfile.TemporaryDirectory() as directory:
        cells = [nbformat.v4.new_code_cell("1+1")]
        kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernelspec})
        Path(directory, "n.ipynb").write_text(nbformat.writes(notebook))
        for number in range(0 if warm_up else 1, rounds + 1):
            for title, name in jobs[number % len(jobs) :] + jobs[: number % len(jobs)]:
                taken = _run(PROGRAMS[title][name], directory)
                if number:
                    actual[title].setdefault(name, []).append(taken)
    for name in missing:
        print(f"not measured, since it is not installed: {name}")
    return {
        title: {name: actual[title][name] for name in programs if name in actual[title]} for title, programs in PROGRAMS.items()
    }


def _run(words: list[str], directory: str) -> float:
    began = time.perf_counter()
    subprocess.run(words, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000
