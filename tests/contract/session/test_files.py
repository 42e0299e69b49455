"""The files of a session, without a cell: what an operation did can be seen by the kernel, by hooks and in the journal."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import anyio
import pytest

from kernelexec import (
    AsyncExecutor,
    AsyncSession,
    Closed,
    Executor,
    FileRefused,
    FilesTouched,
    InvalidPath,
    InvalidWorkDir,
    Session,
)
from kernelexec.events import Event
from kernelexec.records.journal.records import rows
from tests.support.night import at_night

ALSO_CONFINED = ("test_files_go_to_cells_and_come_back",)
BOUND = 60


def list_unfinished(workspace: Path) -> list[Path]:
    """Return temporary files that an operation has left; the session's notebook may be written at any time."""
    return [path for path in workspace.glob(".*.tmp") if ".ipynb." not in path.name]


def test_files_go_to_cells_and_come_back(session: Session) -> None:
    session.files.write("data/in.txt", "40\n2\n")
    code = "import os\nopen('data/out.txt', 'w').write(str(sum(map(int, open('data/in.txt')))))"
    assert session.execute(code).ok
    assert session.files.read("data/out.txt").text == "42"
    assert session.files.list("data").paths == ("data/in.txt", "data/out.txt")
    assert session.execute("os.stat('data/in.txt').st_uid == os.stat('.').st_uid").text.strip() == "True"
    assert session.files.delete("data", recursive=True).deleted == ("data",)
    assert session.execute("os.path.exists('data')").text.strip() == "False"


def test_a_path_may_be_as_kernels_see_it(session: Session) -> None:
    where = session.execute("import os; print(os.getcwd())").stdout.strip()
    assert session.files.write(f"{where}/made.txt", "x").path == "made.txt"
    assert session.files.read(session.workspace / "made.txt").text == "x"


def test_operations_do_not_wait_for_a_cell(session: Session) -> None:
    session.execute("import time, os\nwhile not os.path.exists('go'): time.sleep(0.01)", wait=0.1)
    assert session.busy
    session.files.write("go", "")
    assert session.wait_for(session.executions()[-1]).result is not None


def test_a_notebook_is_read_with_the_cells_that_have_ended(session: Session, tmp_path: Path) -> None:
    session.execute("first = 0")
    [notebook] = session.files.list(pattern="*.ipynb").entries
    for number in range(20):
        session.execute(f"mark_{number} = 1")
        assert f"mark_{number} = 1" in session.files.read(notebook.path, limit=10**6).text
    session.execute("last = 1")
    session.files.download(notebook.path, tmp_path / "copy.ipynb")
    assert "last = 1" in (tmp_path / "copy.ipynb").read_text()


def test_links_and_pipes_of_a_kernel_are_left_alone(session: Session) -> None:
    created = "import os\nos.symlink('/etc/passwd', 'link')\nos.mkfifo('pipe')\nos.symlink('/', 'root')\nos.mkdir('d')"
    assert session.execute(created).ok
    for path in ("link", "pipe", "root", "root/etc/passwd"):
        for call in (session.files.read, lambda path: session.files.write(path, "x")):
            with pytest.raises(FileRefused, match="is left alone"):
                call(path)
    assert {entry.path: entry.kind for entry in session.files.list(recursive=True)}.items() >= {
        ("d", "directory"),
        ("link", "link"),
        ("pipe", "other"),
        ("root", "link"),
    }


def test_files_of_a_cell_must_be_read_before_they_are_deleted(session: Session) -> None:
    session.execute("open('made', 'w').write('x')")
    with pytest.raises(FileRefused, match="made has not been read"):
        session.files.delete("made")
    assert session.files.tracker.can_delete("made")[0] is False
    session.files.read("made")
    session.files.delete("made")


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[tuple[Session, list[Event]]]:
    events: list[Event] = []
    with Executor("local", workspace=tmp_path, hooks=[events.append]) as executor:
        yield executor.session("a"), events


def test_hooks_and_the_journal_know_what_was_done_and_what_was_refused(reported: tuple[Session, list[Event]]) -> None:
    session, events = reported
    session.files.write("a.txt", "x")
    session.files.read("a.txt")
    session.files.list()
    session.execute("open('b.txt', 'w')")
    session.files.delete_many(["*.txt"])
    for path in ("/etc/passwd", "b.txt"):
        with pytest.raises((InvalidPath, FileRefused)):
            session.files.delete(path)
    reason = "b.txt has not been read: read it first, so that nothing is deleted unseen."
    actual = [event for event in events if isinstance(event, FilesTouched)]
    assert actual[:3] == [
        FilesTouched("a", "write", ("a.txt",)),
        FilesTouched("a", "read", ("a.txt",)),
        FilesTouched("a", "delete", ("a.txt",), (reason,)),
    ]
    assert [event.paths for event in actual[3:]] == [(), ()]
    assert actual[3].refused[0].startswith("/etc/passwd: '/etc/passwd' is outside")
    assert actual[4].refused == (f"b.txt: {reason}",)
    assert session.journal is not None
    lines = [json.loads(line) for line in session.journal.read_text().splitlines()]
    logged = [(line["event"], line["kind"], line["files"]) for line in lines if "files" in line and "kind" in line]
    assert logged == [
        ("done", "write", ["a.txt"]),
        ("done", "read", ["a.txt"]),
        ("done", "delete", ["a.txt"]),
        ("refused", "delete", []),
        ("refused", "delete", []),
    ]
    shown = [(row.event, row.kind, row.code) for row in rows(session.journal) if row.kind in ("write", "read", "delete")]
    assert shown[:3] == [("done", "write", "a.txt"), ("done", "read", "a.txt"), ("done", "delete", "a.txt")]


def test_the_records_of_what_ran_are_read_only(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path / "w", config={"read_before_delete": False}) as executor:
        executor.session("a").execute("1")
        whole = executor.session("b", work_dir=tmp_path)
        journal = "w/.journals/a.jsonl"
        assert whole.files.read(journal).text.count("\n") > 1
        for call in (
            lambda: whole.files.write(journal, ""),
            lambda: whole.files.write("w/.journals/new", ""),
            lambda: whole.files.delete(journal),
            lambda: whole.files.delete("w", recursive=True),
        ):
            with pytest.raises(FileRefused):
                call()


def test_two_wrappers_of_one_session_share_what_was_read(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        item, other = executor.session("a"), executor.session("a")
        item.files.write("x", "x")
        assert other.files.tracker is item.files.tracker
        assert other.files.tracker.was_read("x")


def test_after_the_end_nothing_is_done(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        files = session.files
        session.close()
        for call in (files.list, lambda: files.read("x"), lambda: files.write("x", ""), lambda: files.delete("x")):
            with pytest.raises(Closed):
                call()
    assert not (tmp_path / "a" / "x").exists()


def test_a_workspace_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        session.workspace.rename(tmp_path / "moved")
        for call in (session.files.list, lambda: session.files.write("x/y", "")):
            with pytest.raises(InvalidWorkDir, match=r"is gone: make that directory again"):
                call()
        assert not session.workspace.exists()


def test_calls_at_once_are_done_one_after_the_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor:
            session = await executor.session("a")
            await session.files.write("all", "")
            add = partial(session.files.write, "all", append=True)
            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(add, f"{number}\n")
            assert sorted((await session.files.read("all")).text.split(), key=int) == [str(number) for number in range(50)]

    anyio.run(test)


def test_directories_are_uploaded_for_cells_and_downloaded_from_them(session: Session, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "in.bin").write_bytes(bytes(range(256)) * 9000)
    assert session.files.upload(source, "data").files == ("data/deep/in.bin",)
    code = "content = open('data/deep/in.bin', 'rb').read()\nopen('data/out.bin', 'wb').write(content[::-1])"
    assert session.execute(f"{code}\nopen('data/deep/in.bin', 'ab').write(b'x')").value == 1, "it is the kernel's own"
    assert session.files.exists("data/out.bin")
    assert not session.files.exists("data/deep/out.bin")
    session.files.download("data", target)
    assert (target / "out.bin").read_bytes() == (source / "deep" / "in.bin").read_bytes()[::-1]
    assert session.files.delete("data", recursive=True).deleted == ("data",)


def test_hooks_get_the_paths_of_copies(tmp_path: Path) -> None:
    events: list[Event] = []
    (tmp_path / "f").write_bytes(b"x")
    with Executor("local", workspace="temporary", hooks=[events.append]) as executor, executor.session("a") as session:
        session.files.upload(tmp_path / "f", "in/f")
        session.files.download("in", tmp_path / "out")
        with pytest.raises(InvalidPath):
            session.files.download("missing")
    touched = [event for event in events if isinstance(event, FilesTouched)]
    assert [(event.operation, event.paths, len(event.refused)) for event in touched] == [
        ("write", ("in/f",), 0),
        ("read", ("in",), 0),
        ("read", (), 1),
    ]


def test_a_cancelled_upload_stops_and_leaves_nothing() -> None:
    async def use() -> None:
        async with AsyncExecutor("local", workspace="temporary") as executor, await executor.session("a") as session:
            endless = EndlessFile()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.files.upload, cast("BinaryIO", endless), "big")
                while not endless.count:  # noqa: ASYNC110 - a file sets no event
                    await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            count = endless.count
            await anyio.sleep(0.1)  # in which more would be read
            assert endless.count <= count + 1, "one read may have begun"
            assert not await session.files.exists("big")
            assert list_unfinished(session.workspace) == []

    anyio.run(use)


class SilentFile:
    """A file whose calls do not return before its end."""

    name = "silent"

    def __init__(self) -> None:
        self.called, self.end = threading.Event(), threading.Event()

    def read(self, _size: int = -1) -> bytes:
        self.called.set()
        self.end.wait()
        return b""

    def write(self, content: bytes) -> int:
        self.read()
        return len(content)


@pytest.fixture
def silent() -> Iterator[Any]:
    file = SilentFile()
    yield file
    file.end.set()


@pytest.mark.parametrize("operation", ["upload", "download"])
def test_the_end_of_the_executor_ends_a_copy_whose_file_does_not_answer(tmp_path: Path, silent: Any, operation: str) -> None:
    def copy() -> None:
        with pytest.raises(Closed, match=f"was closed during the {operation} of data: nothing of that file was kept"):
            session.files.upload(silent, "data") if operation == "upload" else session.files.download("data", silent)
        ended.append(True)

    ended: list[bool] = []
    executor = Executor("local", workspace=tmp_path / "spaces").open()
    session = executor.session("a")
    session.files.write("data", "old")
    copying = threading.Thread(target=copy)
    copying.start()
    assert silent.called.wait(BOUND)
    executor.close()
    copying.join(BOUND)
    assert ended == [True]
    assert (session.workspace / "data").read_text() == "old"
    assert list_unfinished(session.workspace) == []


@pytest.mark.parametrize("operation", ["upload", "download"])
@pytest.mark.parametrize("with_asyncio", [False, True])
def test_a_cancelled_copy_does_not_wait_for_its_file(
    tmp_path: Path, silent: Any, operation: str, *, with_asyncio: bool
) -> None:
    async def copy(session: AsyncSession, file: Any) -> None:
        await (session.files.upload(file, "data") if operation == "upload" else session.files.download("data", file))

    async def use() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor, await executor.session("a") as session:
            await session.files.write("data", "old")
            if with_asyncio:
                copying = asyncio.create_task(copy(session, silent))
                await asyncio.to_thread(silent.called.wait, BOUND)
                copying.cancel()
                assert isinstance((await asyncio.gather(copying, return_exceptions=True))[0], asyncio.CancelledError)
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(copy, session, silent)
                    await asyncio.to_thread(silent.called.wait, BOUND)
                    tasks.cancel_scope.cancel()
            assert list_unfinished(session.workspace) == []
            assert (await session.files.read("data")).text == "old"
            await copy(session, io.BytesIO(b"new"))

    anyio.run(use)


def test_an_interrupted_upload_waits_for_no_file(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom kernelexec import Executor\nreader, writer = os.pipe()\n"
        "with Executor('local', workspace=sys.argv[1], config={'preload': ()}) as executor:\n"
        "    session = executor.session('a')\n"
        "    try:\n"
        "        print('begun', flush=True)\n"
        "        session.files.upload(os.fdopen(reader, 'rb'), 'data')\n"
        "    except KeyboardInterrupt:\n"
        "        print(session.files.list().paths, session.execute('6 * 7').value, flush=True)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        deadline = time.monotonic() + BOUND
        while not list(tmp_path.glob("a/.*.tmp")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=BOUND)
    assert (process.returncode, output) == (0, "('a.ipynb',) 42\n")


class FailingFile:
    """A file whose calls raise an exception."""

    name = "failing"

    def __init__(self, failure: BaseException) -> None:
        self.failure = failure

    def read(self, _size: int = -1) -> bytes:
        raise self.failure

    def write(self, _content: bytes) -> int:
        raise self.failure


ENDINGS = [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, MemoryError, EOFError]


@pytest.mark.parametrize("ending", [*ENDINGS[:2], *at_night(*ENDINGS[2:])])
def test_errors_of_a_file_object_are_raised_unchanged_and_cost_nothing_else(
    session: Session, ending: type[BaseException]
) -> None:
    session.files.write("data", "old")
    session.execute("x = 41")
    file: Any = FailingFile(ending("mine"))
    for call in (partial(session.files.upload, file), partial(session.files.download, target=file)):
        with pytest.raises(ending) as caught:
            call(path="data")
        assert caught.value is file.failure
    assert session.execute("x + 1").value == 42
    assert session.files.read("data").text == "old"
    assert list_unfinished(session.workspace) == []


def test_errors_of_a_file_object_reach_an_asynchronous_caller(tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncExecutor("local", workspace=tmp_path) as executor, await executor.session("a") as session:
            await session.files.write("data", "old")
            for kind in ENDINGS:
                file: Any = FailingFile(kind("mine"))
                with pytest.raises(kind) as caught:
                    await session.files.upload(file, "data")
                assert caught.value is file.failure
                with pytest.raises(kind):
                    await session.files.download("data", file)
            assert (await session.execute("6 * 7")).value == 42

    anyio.run(use)


class EndlessFile(io.RawIOBase):
    """A binary file without an end."""

    count = 0

    def read(self, _size: int = -1) -> bytes:
        self.count += 1
        return b"x"
