"""The mark of a process can be replaced where other processes read it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec.launcher.processes import proc
from kernelexec.launcher.processes.proc import has_variable

_PROGRAM = """
import os, sys
from kernelexec.launcher.processes.tree import replace_mark
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


def environment(monkeypatch: pytest.MonkeyPatch, directory: Path, content: bytes) -> int:
    """Make a directory with an environment the one of all processes; return the number of its process."""
    (directory / "1").mkdir(exist_ok=True)
    (directory / "1" / "environ").write_bytes(content)
    monkeypatch.setattr(proc, "PROC", directory)
    return 1


@pytest.mark.parametrize("before", [0, 1, 100, *range(64 * 1024 - 12, 64 * 1024 + 12), 300 * 1024])
@pytest.mark.parametrize("end", [b"\0", b"", b"\0LAST=1\0"], ids=["last", "without an end", "followed"])
def test_an_entry_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int, end: bytes) -> None:
    filler = b"F=" + b"x" * (before - 3) + b"\0" if before > 3 else b"\0" * before
    pid = environment(monkeypatch, tmp_path, filler + b"NAME=value" + end)
    assert has_variable(pid, b"NAME=value")
    for other in (b"NAME=valu", b"AME=value", b"NAME=value2", b"NAME="):
        assert not has_variable(pid, other)


def test_the_value_of_another_variable_is_no_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = environment(monkeypatch, tmp_path, b"OTHER=NAME=value\0MORE= NAME=value\0")
    assert not has_variable(pid, b"NAME=value")


def test_no_environment_is_read_without_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = environment(monkeypatch, tmp_path, b"ab\0" * 500_000 + b"NAME=value\0")
    assert not has_variable(pid, b"NAME=value")
