"""Files of a snapshot that a kernel has replaced."""

from __future__ import annotations

import os
from pathlib import Path

from kernelexec.launcher.features.value_transfer import load_variables


def test_a_fifo_in_the_place_of_a_file_ends_nothing_and_waits_for_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.pickle")
    writer = os.open(tmp_path / "0.pickle", os.O_RDWR)
    try:
        loaded = load_variables({}, str(tmp_path), [("x", "0.pickle", "0" * 64)])
    finally:
        os.close(writer)
    assert loaded == {"back": [], "missing": [{"name": "x", "why": "ValueError: its file has changed since it was saved"}]}
