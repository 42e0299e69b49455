"""Open files and pipes of a copy: this process stands for the copy."""

from __future__ import annotations

import os
from pathlib import Path

from kernelexec.launcher.checkpoints.shared_state import OpenFiles, list_open


def note(*descriptors: int) -> OpenFiles:
    """The state of these descriptors only."""
    return OpenFiles(set(list_open()) - set(descriptors))


def test_a_file_is_at_the_position_that_it_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcdef")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    os.read(fd, 2)
    files = note(fd)
    for _ in range(2):
        os.read(fd, 3)
        files.separate()
        assert os.read(fd, 2) == b"cd"
    os.close(fd)


def test_flags_of_a_file_stay(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_APPEND)
    note(fd).separate()
    os.write(fd, b"def")
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_pipe_to_elsewhere_ends() -> None:
    reader, writer = os.pipe()
    files = note(reader)
    for _ in range(2):
        files.separate()
        assert os.read(reader, 1) == b""
    os.close(reader)
    os.close(writer)


def test_a_file_with_the_number_of_a_closed_pipe_is_left_alone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    files = note(reader, writer)
    os.close(writer)
    os.close(reader)
    (tmp_path / "file").write_bytes(b"abc")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    assert fd == reader
    files.separate()
    assert os.read(fd, 3) == b"abc"
    os.close(fd)
