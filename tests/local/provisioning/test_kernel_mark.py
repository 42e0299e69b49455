"""The mark of a process can be replaced where other processes read it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelexec.launcher.processes.proc import has_variable

_PROGRAM = """
import os, sys
from kernelexec.launcher.processes.kernel_mark import replace_mark
os.environ["MORE"] = "x" * 1000
replace_mark(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("first", "mark", "seen"), [("a" * 32, "b" * 32, "b" * 32), ("a" * 32, "short", "a" * 32), (None, "b" * 32, None)]
)
def test_a_mark_of_the_same_length_is_replaced(first: str | None, mark: str, seen: str | None) -> None:
    environ = {"PYTHONPATH": ":".join(sys.path)} | ({} if first is None else {"KERNELEXEC_KERNEL": first})
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, mark], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        present = [value for value in ("a" * 32, "b" * 32) if has_variable(process.pid, f"KERNELEXEC_KERNEL={value}".encode())]
        assert present == ([] if seen is None else [seen])
        process.communicate(b"")
