"""A cell fills the disk of workspaces and private directories: every kernel lives, every call ends as a result or our error."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, FileRefused, KernelexecError, NotebookNotWritten, Session
from kernelexec.launcher.output.kept_output import CrashBuffer
from tests.contract.launcher.test_crash_output import heard
from tests.contract.records.test_recorder import cells_of
from tests.support.engine import IMAGE, needs_engine

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
FULL = "No space left on device"
OUT = False
FILL = """file = open('big', 'wb', buffering=0)
try:
    while True:
        file.write(b'0' * 4096)
except OSError as exc:
    print(exc)
file.close()"""
SIZES = (10, 5_000, 100_000, 3_000_000)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A file system of 24 MiB that holds everything: workspaces, private and temporary directories."""
    with tempfile.TemporaryDirectory(prefix="kxt-") as location, pytest.MonkeyPatch.context() as patch:
        directory = Path(location, "d")
        directory.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=755", "tmpfs", str(directory)], check=True)
        (directory / "run").mkdir(mode=0o700)
        for name in ("KERNELEXEC_RUNTIME_DIR", "TMPDIR"):
            patch.setenv(name, str(directory / "run"))
        patch.setattr(tempfile, "tempdir", None)
        yield directory
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture(scope="module")
def executor(disk: Path) -> Iterator[Executor]:
    with Executor("local", workspace=disk / "w") as opened:
        yield opened


@pytest.fixture
def filler(executor: Executor, disk: Path) -> Iterator[Session]:
    """A session that has room and can fill the disk."""
    yield executor.session("filler")
    (disk / "w" / "filler" / "big").unlink(missing_ok=True)


@pytest.mark.parametrize("isolation", ["local", pytest.param("container", marks=[needs_engine, pytest.mark.nightly])])
def test_no_kernel_dies_of_a_full_disk_and_the_record_goes_on(isolation: str, disk: Path) -> None:
    config = {"container": {"image": IMAGE}} if isolation == "container" else {}
    workspace = disk / isolation
    with Executor(isolation, workspace=workspace, config=config) as executor:
        other, filler = executor.session("other"), executor.session("filler")
        assert other.execute("x = 1").state == filler.execute("y = 1").state == "kept"
        assert filler.execute(FILL).stdout.endswith(f"{FULL}\n")
        for session in (other, filler):
            for size in SIZES:
                result = session.execute(f"print('y' * {size})")
                assert (result.status, result.state) == ("ok", "kept")
            assert session.execute_command("export A=1; echo $A").stdout == "1\n"
            with pytest.raises(NotebookNotWritten, match=FULL):
                session.save_notebook()
            assert f"Not recorded in the notebook yet: {FULL}." in session.execute("1").notes
        (workspace / "filler" / "big").unlink()
        assert other.execute("x").text == "1"
        other.save_notebook()
        assert other.notebook is not None
        assert len(cells_of(other.notebook)) == len(SIZES) + 4
        assert other.execute("x").notes == ()
        assert other.journal is not None
        assert '"missed"' in other.journal.read_text()
    shutil.rmtree(workspace)


CALLS: dict[str, Callable[[Executor, Session], Any]] = {
    "a display": lambda _, s: s.execute("from IPython.display import HTML; HTML('<b>x</b>' * 9999)").raise_for_error(),
    "a command with a long input": lambda _, s: s.execute_command("cat", stdin="x" * 200_000).raise_for_error(),
    "a command that is longer than an argument": lambda _, s: s.execute_command("echo " + "x" * 120_000),
    "a script": lambda _, s: s.execute("%%bash\necho hi").raise_for_error(),
    "a background command": lambda _, s: s.start_background("echo hi"),
    "a snapshot": lambda _, s: s.snapshot(),
    "tests": lambda _, s: s.run_tests("def f():\n    return 1", ["assert f() == 1"]),
    "a request": lambda _, s: s.execute("1", request_id="a"),
    "an installation": lambda _, s: s.install("six", wheels=s.workspace),
    "a new kernel": lambda _, s: (s.restart(), s.execute("1").raise_for_error()),
    "a new session": lambda e, _: e.session("new").execute("1"),
    "the end of a session": lambda _, s: s.close(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_full_disk_is_a_result_or_our_error(
    call: Callable[[Executor, Session], Any], executor: Executor, session: Session, filler: Session
) -> None:
    assert filler.execute(FILL).stdout.endswith(f"{FULL}\n")
    try:
        call(executor, session)
    except KernelexecError as exc:
        assert FULL in str(exc)  # noqa: PT017 - not every call fails


def test_a_file_is_written_as_a_whole_or_not_at_all(session: Session, filler: Session) -> None:
    session.files.write("a", "old")
    assert filler.execute(FILL).stdout.endswith(f"{FULL}\n")
    for append in (True, False):
        with pytest.raises(FileRefused, match=FULL):
            session.files.write("a", "x" * 10_000, append=append)
    assert session.files.read("a").text == "old"


def test_the_newest_text_is_kept_as_far_as_there_is_room(disk: Path) -> None:
    path = disk / "words"
    words = CrashBuffer(str(path))
    words.begin({"msg_id": "m"})
    words.add(OUT, b"a" * 1000)
    with pytest.raises(OSError, match=FULL):
        (disk / "big").write_bytes(bytes(32 << 20))
    assert words.is_file_backed
    for _ in range(500):
        words.add(OUT, b"b" * 999 + b"\n")
    assert set(heard(path, 1000, "m")) == {"b", "\n"}
    late = CrashBuffer(str(disk / "others"))
    late.begin({"msg_id": "m"})
    late.add(OUT, b"c" * 100_000)
    assert not late.is_file_backed
    (disk / "big").unlink()
    late.begin({"msg_id": "m"})
    late.add(OUT, b"c" * 100_000)
    assert heard(disk / "others", 0, "m") == "c" * 100_000
