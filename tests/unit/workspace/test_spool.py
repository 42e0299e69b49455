"""What is kept out of memory comes back as it was, takes no name, and no more room than twice what is needed."""

from __future__ import annotations

import gc
import os
import resource
import tempfile
from pathlib import Path

import pytest

from kernelexec.workspace import spill as module
from kernelexec.workspace.spill import LEAST_BYTES, Spool, SpooledBytes


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.no_cover
def test_bytes_come_back_as_they_were_and_few_of_them_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool, before = Spool(), descriptors()
    contents = [os.urandom(size) for size in (0, 1, LEAST_BYTES - 1, LEAST_BYTES, 100_000, 3_000_000)]
    kept = [spool.keep(content) for content in contents]
    assert [isinstance(item, SpooledBytes) for item in kept] == [False] * 3 + [True] * 3
    assert [spool.read(item) for item in kept] == contents
    assert list(tmp_path.iterdir()) == []
    assert list(map(len, kept)) == list(map(len, contents))
    spool.close()
    assert descriptors() <= before
    with pytest.raises(OSError, match="not all there"):
        spool.read(kept[-1])


def test_dropped_contents_take_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WASTE_BYTES", 10_000)
    spool, contents = Spool(), [bytes([number]) * 2000 for number in range(100)]
    kept = [spool.keep(content) for content in contents]
    for number in range(90):
        spool.drop(kept[number])
        spool.tidy(item for item in kept[number + 1 :] if isinstance(item, SpooledBytes))
        assert [spool.read(item) for item in kept[number + 1 :]] == contents[number + 1 :]
    file = spool._file
    assert file is not None
    assert os.fstat(file._fd).st_size <= 2 * 10 * 2000 + 10_000


def test_where_nothing_can_be_written_bytes_stay_in_memory() -> None:
    spool = Spool()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    first = spool.keep(b"x" * 5000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        second = spool.keep(b"y" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(first, SpooledBytes)
    assert second == b"y" * 5000
    third = spool.keep(b"z" * 5000)
    assert [spool.read(item) for item in (first, second, third)] == [b"x" * 5000, b"y" * 5000, b"z" * 5000]
