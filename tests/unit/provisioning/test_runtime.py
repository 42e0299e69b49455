"""A kernel's private directory: what is in it, what is read back from it, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import RuntimeDirectory
from kernelexec.provisioning.runtime import kernel_directory
from kernelexec.workspace import rmtree
from tests.support.pace import until

PATIENCE = 30
PORTS = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4, "hb": 5}


@pytest.fixture
def runtime(short_path: Path) -> Iterator[RuntimeDirectory]:
    directory = RuntimeDirectory(short_path / "session" / "1")
    yield directory
    directory.remove()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> None:
    """Close what earlier tests have left, which else might be closed in the middle of one that counts."""
    gc.collect()


def descriptors() -> int:
    gc.collect(1)  # all objects would take long where thousands of tests have left some
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_no_other_user_can_read_the_directory_or_its_contents(runtime: RuntimeDirectory, umask: int) -> None:
    before = os.umask(umask)
    try:
        runtime.create()
    finally:
        os.umask(before)
    assert mode(runtime.path) == 0o700
    assert {path.name: oct(mode(path)) for path in runtime.path.iterdir()} == dict.fromkeys(
        ("connection.json", "ready", "owner"), "0o600"
    )
    assert stat.S_ISREG(runtime.connection_file.lstat().st_mode)
    assert (runtime.path / "ready").is_fifo()
    assert (runtime.path / "owner").is_fifo()


def test_the_connection_file_says_what_the_connection_is(runtime: RuntimeDirectory) -> None:
    connection = runtime.create()
    assert json.loads(runtime.connection_file.read_text()) == {
        "transport": "ipc",
        "ip": str(runtime.path / "s"),
        "key": connection.key.decode(),
        "signature_scheme": "hmac-sha256",
        "kernel_name": "kernelexec",
        "kernelexec_uid": os.getuid(),
        **{f"{channel}_port": port for channel, port in PORTS.items()},
    }
    for channel, port in PORTS.items():
        assert connection.path(channel) == runtime.path / f"s-{port}"


def test_every_kernel_has_a_key_of_its_own(short_path: Path) -> None:
    directories = [RuntimeDirectory(short_path / str(n)) for n in range(10)]
    keys = {directory.create().key for directory in directories}
    assert len(keys) == 10
    assert {len(key) for key in keys} == {64}
    for directory in directories:
        directory.remove()


def test_a_directory_that_is_there_already_is_not_taken_over(runtime: RuntimeDirectory) -> None:
    runtime.path.mkdir(parents=True)
    before = descriptors()
    with pytest.raises(FileExistsError):
        runtime.create()
    until(lambda: descriptors() <= before)


def test_the_launcher_gets_its_paths_its_token_and_its_limits(runtime: RuntimeDirectory) -> None:
    order = json.loads(runtime.launch_environment("token", {"memory": 5})["KERNELEXEC_LAUNCH"])
    assert (order["token"], order["limits"], order["scratch"]) == ("token", {"memory": 5}, str(runtime.path))
    assert {order[name] for name in ("ready", "owner", "stacks")} == {
        str(runtime.path / name) for name in ("ready", "owner", "stacks")
    }


def of_length(base: Path, length: int) -> RuntimeDirectory:
    """A directory whose sockets have paths of this many bytes."""
    return RuntimeDirectory(base / ("d" * (length - len(f"{base}//s-1"))))


def test_the_longest_path_that_a_socket_can_have_is_taken(short_path: Path) -> None:
    directory = of_length(short_path, 107)
    path = directory.create().path("shell")
    assert len(str(path)) == 107
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    directory.remove()


@pytest.mark.parametrize("length", [108, 150])
def test_a_path_that_no_socket_can_have_is_a_clear_error(short_path: Path, length: int) -> None:
    with pytest.raises(KernelStartFailed, match=r"107 bytes; shorten XDG_RUNTIME_DIR or TMPDIR"):
        of_length(short_path, length).create()
    assert list(short_path.iterdir()) == []


def test_a_path_is_measured_in_bytes(short_path: Path) -> None:
    with pytest.raises(KernelStartFailed, match="107 bytes"):
        RuntimeDirectory(short_path / ("\u65e5" * 30)).create()


def write(runtime: RuntimeDirectory, data: bytes) -> None:
    fd = os.open(runtime.path / "ready", os.O_WRONLY | os.O_NONBLOCK)
    try:
        assert os.write(fd, data) == len(data)
    finally:
        os.close(fd)


def wait_ready(runtime: RuntimeDirectory) -> dict[str, Any]:
    return asyncio.run(asyncio.wait_for(runtime.wait_ready(), PATIENCE))


SAID: dict[str, tuple[bytes, dict[str, Any]]] = {
    "a line": (b'{"pid": 5, "python": "\\u65e5"}\n', {"pid": 5, "python": "\u65e5"}),
    "UTF-8": ('{"a": "\u65e5"}\n'.encode(), {"a": "\u65e5"}),
    "an empty object": (b"{}\n", {}),
    "a line without an end": (b'{"a": 1}', {"a": 1}),
    "a cut line": (b'{"pid": 5, "pyth', {}),
    "an empty line": (b"\n", {}),
    "garbage": (b"hello\n", {}),
    "bytes that are no text": (b'{"a": "\xff"}\n', {}),
    "NUL": (b"\x00\x00\x00\n", {}),
    "a list": (b"[1]\n", {}),
    "a string": (b'"ready"\n', {}),
    "null": (b"null\n", {}),
    "a number of 4000 digits": (b"9" * 4000 + b"\n", {}),
    "depth without an end": (b"[" * 4000 + b"\n", {}),
    "a line that is too long": (b'{"a": "' + b"x" * 10_000 + b'"}\n', {}),
    "a long line that is within bounds": (b'{"a": "' + b"x" * 4000 + b'"}\n', {"a": "x" * 4000}),
}


@pytest.mark.parametrize(("message", "heard"), SAID.values(), ids=SAID)
def test_readiness_is_what_a_line_says_or_nothing(runtime: RuntimeDirectory, message: bytes, heard: dict[str, Any]) -> None:
    runtime.create()
    write(runtime, message)
    assert wait_ready(runtime) == heard


def test_readiness_in_pieces_is_put_together(runtime: RuntimeDirectory) -> None:
    runtime.create()
    line = b'{"pid": 5}\n'

    async def run() -> dict[str, Any]:
        waiting = asyncio.ensure_future(runtime.wait_ready())
        with (runtime.path / "ready").open("wb", buffering=0) as pipe:
            for at in range(len(line)):
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not waiting.done()
                pipe.write(line[at : at + 1])
            return await waiting

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == {"pid": 5}


def test_a_writer_that_leaves_without_a_word_is_heard(runtime: RuntimeDirectory) -> None:
    runtime.create()

    async def run() -> dict[str, Any]:
        waiting = asyncio.ensure_future(runtime.wait_ready())
        await asyncio.sleep(0)
        write(runtime, b"")
        return await waiting

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == {}


def test_a_wait_for_readiness_can_be_given_up_and_taken_up_again(runtime: RuntimeDirectory) -> None:
    runtime.create()

    async def run() -> dict[str, Any]:
        waiting = asyncio.ensure_future(runtime.wait_ready())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        write(runtime, b'{"a": 1}\n')
        return await runtime.wait_ready()

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE)) == {"a": 1}


NO_FILES: dict[str, Callable[[Path], object]] = {
    "missing": Path.is_file,
    "a link to a file": lambda path: path.symlink_to("/etc/passwd"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a fifo": os.mkfifo,
    "a directory": Path.mkdir,
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
}


@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_irregular_files_are_read_as_nothing(runtime: RuntimeDirectory, make: Callable[[Path], object]) -> None:
    runtime.create()
    make(runtime.path / "stderr")
    before = descriptors()
    assert runtime.read_file("stderr", 1000) == b""
    until(lambda: descriptors() <= before)


@pytest.mark.parametrize(
    ("content", "limit", "tail"),
    [
        (b"", 10, b""),
        (b"abc", 10, b"abc"),
        (b"abc", 3, b"abc"),
        (b"abc", 2, b"bc"),
        (b"\xff\x00\n" * 100_000, 4, b"\n\xff\x00\n"),
    ],
)
def test_the_tail_of_a_plain_file_is_read(runtime: RuntimeDirectory, content: bytes, limit: int, tail: bytes) -> None:
    runtime.create()
    (runtime.path / "stderr").write_bytes(content)
    before = descriptors()
    assert runtime.read_file("stderr", limit) == tail
    until(lambda: descriptors() <= before)


def test_a_file_of_many_gigabytes_costs_no_more_than_its_tail(runtime: RuntimeDirectory) -> None:
    runtime.create()
    with (runtime.path / "stderr").open("wb") as file:
        file.truncate(2**40)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    assert runtime.read_file("stderr", 5) == b"\0\0end"


def test_nothing_stays_after_the_removal(runtime: RuntimeDirectory, short_path: Path) -> None:
    before = descriptors()
    runtime.create()
    outside = short_path / "outside"
    outside.write_text("kept")
    (runtime.path / "deep" / "er").mkdir(parents=True)
    (runtime.path / "deep" / "file").touch(mode=0o000)
    (runtime.path / "link").symlink_to(outside)
    (runtime.path / "up").symlink_to(short_path)
    runtime.remove()
    until(lambda: descriptors() <= before)
    assert list(runtime.path.parent.iterdir()) == []
    assert outside.read_text() == "kept"
    runtime.remove()
    until(lambda: descriptors() <= before)


def test_the_owners_pipe_is_held_open_until_the_removal(runtime: RuntimeDirectory) -> None:
    runtime.create()
    watched = os.open(runtime.path / "owner", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(BlockingIOError):
            os.read(watched, 1)
        runtime.remove()
        assert os.read(watched, 1) == b""
    finally:
        os.close(watched)


@pytest.fixture
def branch(runtime: RuntimeDirectory) -> Iterator[RuntimeDirectory]:
    """The directory of a branch's kernel, in that of its parent's."""
    runtime.create()
    added = runtime.add_branch()
    (session := runtime.session.with_name("branch")).mkdir()
    directory = RuntimeDirectory(session / "1", added)
    directory.create()
    yield directory
    directory.remove()


def test_the_directory_of_a_branch_is_in_that_of_its_parent_and_ends_with_it(
    runtime: RuntimeDirectory, branch: RuntimeDirectory
) -> None:
    assert branch.is_of_branch
    assert branch.path == runtime.path / "b1"
    assert branch.place == runtime.path
    assert not runtime.clear()
    runtime.remove()
    assert branch.read_connection() is not None
    branch.remove()
    runtime.remove()
    assert list(runtime.session.iterdir()) == list(branch.session.iterdir()) == []


@pytest.mark.parametrize("target", ["outside", "inside"])
def test_a_link_with_the_name_of_a_branch_is_not_followed(runtime: RuntimeDirectory, short_path: Path, target: str) -> None:
    runtime.create()
    path = (short_path if target == "outside" else runtime.path) / "new"
    (runtime.path / "b1").symlink_to(path)
    branch = runtime.add_branch()
    assert branch.path == runtime.path / "b2"
    assert branch.path.is_dir()
    assert not path.exists()
    branch.remove()


def test_a_kernel_that_takes_all_names_has_no_branch(runtime: RuntimeDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_directory, "_BRANCH_NUMBERS", range(1, 3))
    runtime.create()
    for name in ("b1", "b2"):
        (runtime.path / name).touch()
    with pytest.raises(FileExistsError, match="all names of branches are taken"):
        runtime.add_branch()


def use_secret_pipe(runtime: RuntimeDirectory) -> None:
    with runtime.secret_pipe({"KEY": "secret"}, None):
        pass


#: What the owner of a kernel does in its private directory.
USES: dict[str, Callable[[RuntimeDirectory], object]] = {
    "create": lambda runtime: RuntimeDirectory(runtime.session / "2", runtime).create(),
    "create_stderr": lambda runtime: runtime.create_stderr().close(),
    "secret_pipe": use_secret_pipe,
    "take_over": RuntimeDirectory.take_over,
    "clear_for_checkpoint": lambda runtime: runtime.clear_for_checkpoint(()),
    "clear": RuntimeDirectory.clear,
    "remove": RuntimeDirectory.remove,
}


def put_link(path: Path, outside: Path) -> Path:
    """Put a link to a directory there; return the directory."""
    path.symlink_to(outside)
    return outside


def put_directory(path: Path, outside: Path) -> Path:
    """Put the directory itself there, and return it."""
    return outside.rename(path)


@pytest.mark.parametrize("put", [put_link, put_directory])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    "names", [(), ("connection.json", "owner", "stderr", "secrets", "words", "c-1")], ids=["empty", "full"]
)
def test_nothing_is_changed_in_what_has_taken_the_place_of_a_branches_directory(
    branch: RuntimeDirectory,
    short_path: Path,
    put: Callable[[Path, Path], Path],
    use: Callable[[RuntimeDirectory], object],
    names: tuple[str, ...],
) -> None:
    outside = short_path / "outside"
    outside.mkdir(mode=0o700)
    for name in names:
        (outside / name).write_text("precious")
    branch.path.rename(branch.path.with_name("moved"))
    replaced = put(branch.path, outside)
    with suppress(OSError):
        use(branch)
    assert {path.name: path.read_text() for path in replaced.iterdir()} == dict.fromkeys(names, "precious")
    assert branch.read_file("words", 100) == b""


def test_a_link_in_the_place_of_stderr_is_not_written_through(runtime: RuntimeDirectory, short_path: Path) -> None:
    runtime.create()
    (runtime.path / "stderr").symlink_to(short_path / "outside")
    with pytest.raises(FileExistsError):
        runtime.create_stderr()
    assert not (short_path / "outside").exists()


def test_stderr_is_appended_to_the_file(runtime: RuntimeDirectory) -> None:
    runtime.create()
    with runtime.create_stderr() as stderr:
        assert stderr.name == str(runtime.path / "stderr")
        (runtime.path / "stderr").write_bytes(b"another process, ")
        stderr.write(b"this one")
    assert runtime.read_file("stderr", 100) == b"another process, this one"


@pytest.mark.parametrize("end", [RuntimeDirectory.remove, RuntimeDirectory.clear], ids=["remove", "clear"])
def test_a_cell_that_goes_on_making_directories_holds_no_removal(
    runtime: RuntimeDirectory, end: Callable[[RuntimeDirectory], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.create()
    deadline = time.monotonic() + PATIENCE

    def make_another(name: str, *_: object) -> list[str]:
        assert time.monotonic() < deadline
        return [name]

    with monkeypatch.context() as patched:
        patched.setattr(rmtree, "_remove", make_another)
        patched.setattr(kernel_directory, "CALL_SECONDS", 0.2)
        assert not end(runtime)
    assert runtime.path.is_dir()
