"""Copies of wheels for one-shot tasks: a cell may have made the wheel, and may change it meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kernelexec.provisioning.launch import one_shot_task
from kernelexec.provisioning.launch.one_shot_task import copy_wheel
from kernelexec.workspace.safe_files import copy_content

NAME = "x-1-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    path = tmp_path / NAME
    path.write_bytes(b"abcde")
    return path


def test_a_copy_of_a_growing_wheel_has_its_size_at_the_beginning(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(source: int, target: int, size: int) -> None:
        wheel.write_bytes(wheel.read_bytes() + b"more")
        copy_content(source, target, size)

    monkeypatch.setattr(one_shot_task, "copy_content", grow)
    monkeypatch.setattr(one_shot_task, "_COPIED_BYTES", 2)
    copy_wheel(wheel, wheel.parent, limit_bytes=5, deadline=time.monotonic() + 60)
    assert (wheel.parent / "wheels" / NAME).read_bytes() == b"abcde"


def test_a_wheel_that_is_too_large_is_not_copied(wheel: Path) -> None:
    with pytest.raises(OSError, match="it has 5 bytes, the limit is 4"):
        copy_wheel(wheel, wheel.parent, limit_bytes=4, deadline=time.monotonic() + 60)


def test_a_copy_ends_at_its_deadline(wheel: Path) -> None:
    with pytest.raises(TimeoutError, match="the time limit was reached"):
        copy_wheel(wheel, wheel.parent, limit_bytes=5, deadline=time.monotonic() - 1)
