"""Files next to hidden ones, to which confined kernels have rights: what becomes of their space."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernelexec import Executor
from kernelexec.provisioning import platform
from kernelexec.provisioning.host import deleted_files
from tests.support.pace import until

CONTENT = b"x" * (1 << 20)


class Watched:
    """A file next to the workspaces, with a descriptor that tells its size and does not open it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(CONTENT)
        self.path, self._fd = path, os.open(path, os.O_PATH)

    @property
    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path / "data.csv")
    yield watched
    watched.close()


@pytest.fixture
def executor(big: Watched, tmp_path: Path) -> Iterator[Executor]:
    with Executor("local", workspace=tmp_path / "ws", config={"checkpoints": "off"}) as opened:
        yield opened


def test_a_deleted_file_takes_no_space_while_a_session_could_read_it(executor: Executor, big: Watched) -> None:
    session = executor.session("a")
    assert session.execute(f"len(open({str(big.path)!r}).read())").value == len(CONTENT)
    big.path.unlink()
    until(lambda: big.size == 0)


def test_a_replaced_file_takes_no_space(executor: Executor, big: Watched, tmp_path: Path) -> None:
    executor.session("a").execute("1")
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(big.path)
    until(lambda: big.size == 0)
    assert big.path.read_text() == "new"


def test_a_deleted_file_stays_whole_for_those_that_have_it_open(executor: Executor, big: Watched) -> None:
    session = executor.session("a")
    session.execute(f"file = open({str(big.path)!r}, 'rb')")
    with big.path.open("rb") as file:
        big.path.unlink()
        assert session.execute("len(file.read()), file.close()").text == f"({len(CONTENT)}, None)"
        assert file.read() == CONTENT
    until(lambda: big.size == 0)


def test_a_deleted_file_in_use_is_looked_at_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, executor: Executor, big: Watched
) -> None:
    looks: list[int] = []

    def empty_unused(fd: int) -> bool:
        looks.append(fd)
        return platform.empty_unused(fd)

    monkeypatch.setattr(deleted_files, "platform", SimpleNamespace(empty_unused=empty_unused))
    executor.session("a").execute("1")
    with big.path.open("rb"):
        big.path.unlink()
        until(lambda: len(looks) > 2)
        time.sleep(0.2)  # a look that leads to the next one would be repeated thousands of times
        assert len(looks) < 20
    until(lambda: big.size == 0)


def test_a_file_with_another_name_stays(executor: Executor, big: Watched, tmp_path: Path) -> None:
    executor.session("a").execute("1")
    os.link(big.path, tmp_path / "other")
    big.path.unlink()
    executor.session("b").execute("1")
    assert (tmp_path / "other").read_bytes() == CONTENT
    (tmp_path / "other").unlink()
    until(lambda: big.size == 0)


def test_the_largest_files_are_looked_after(
    monkeypatch: pytest.MonkeyPatch, executor: Executor, big: Watched, tmp_path: Path
) -> None:
    monkeypatch.setattr(deleted_files, "_FILES_MAX", 1)
    executor.session("a").execute("1")
    with (tmp_path / "larger").open("wb") as file:
        file.truncate(1 << 40)
    larger = os.open(tmp_path / "larger", os.O_PATH)
    try:
        executor.session("b").execute("1")
        for path in (big.path, tmp_path / "larger"):
            path.unlink()
        until(lambda: os.fstat(larger).st_size == 0)
    finally:
        os.close(larger)
    assert big.size == len(CONTENT)
