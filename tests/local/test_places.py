"""A run of the tests sees only directories of its own, and a killed run's are removed by the next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelexec.provisioning.runtime.owned_directory import runtime_bases
from tests.support.paths import ROOT
from tests.support.places import PLACES

#: A run, which says where it is, and ends when its stdin does.
RUN = "import sys, tests\nprint(tests.PLACES.run, flush=True)\nsys.stdin.read()"


@contextmanager
def begun(base: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run that has begun, and its directory."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELEXEC_TEST_", "PYTEST_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=ROOT,
        env={**outside, "TMPDIR": str(base)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize("name", ["HOME", "KERNELEXEC_RUNTIME_DIR", "TMPDIR", "XDG_RUNTIME_DIR"])
def test_this_process_has_directories_of_its_own(name: str) -> None:
    assert Path(os.environ[name]).is_relative_to(PLACES.run)


def test_executors_are_looked_for_nowhere_else() -> None:
    assert all(base.is_relative_to(PLACES.run) for base in runtime_bases())


def test_a_run_removes_its_directory_and_those_of_killed_ones_only(short_path: Path) -> None:
    with begun(short_path) as (killed, left):
        killed.kill()
    assert left.is_dir()
    with begun(short_path) as (_, first):
        assert not left.exists()
        with begun(short_path) as (_, second):
            assert first.is_dir()
            assert second.is_dir()
        assert not second.exists()
        assert first.is_dir()
    assert list(short_path.iterdir()) == []
