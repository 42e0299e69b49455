"""The checkpoints of a kernel are those with a socket in its directory, where cells may put any file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec.launcher.protocol import CHECKPOINT_SOCKET
from kernelexec.provisioning.runtime import unix_sockets
from kernelexec.provisioning.runtime.unix_sockets import list_checkpoints


def test_checkpoints_are_listed_by_their_numbers_the_newest_first(tmp_path: Path) -> None:
    for name in ("1", "10", "9", "x", "", "\u0661", "-1"):
        (tmp_path / f"{CHECKPOINT_SOCKET}{name}").touch()
    (tmp_path / "7").touch()
    assert list_checkpoints(tmp_path) == [10, 9, 1]
    assert list_checkpoints(tmp_path / "missing") == []


def test_of_very_many_files_a_part_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unix_sockets._ENTRIES_MAX == 10_000
    monkeypatch.setattr(unix_sockets, "_ENTRIES_MAX", 100)
    for number in range(150):
        (tmp_path / f"{CHECKPOINT_SOCKET}{number}").touch()
    assert len(list_checkpoints(tmp_path)) == 100


def test_a_link_in_the_place_of_a_kernels_directory_has_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / f"{CHECKPOINT_SOCKET}1").touch()
    (tmp_path / "b1").symlink_to("other")
    assert list_checkpoints(tmp_path / "b1") == []
