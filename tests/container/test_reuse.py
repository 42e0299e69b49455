"""Kernel after kernel in one container: the next one is forked there, and finds nothing of the one before."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from kernelexec.docker.client import Engine
from tests.support.container_reuse import CLEAN, ids, looked, opened, small_executor, watched_session  # noqa: F401 - the two are fixtures
from tests.support.engine import needs_engine
from tests.support.night import named_cases
from tests.support.pace import BOUND, until

pytestmark = needs_engine

#: Leaves something of every kind.
LEAVE = """
import ctypes, os, pathlib, subprocess
libc = ctypes.CDLL(None)
assert libc.shmget(0x4b58, 4096, 0o1666) >= 0 and libc.msgget(0x4b58, 0o1666) >= 0 and libc.semget(0x4b58, 1, 0o1666) >= 0
pathlib.Path('/tmp/directory/deep').mkdir(parents=True)
pathlib.Path('/tmp/directory/deep/file').write_text('left')
os.chmod('/tmp/directory/deep', 0)
pathlib.Path('/tmp/file').symlink_to('/workspace/file')
os.mkfifo('/tmp/fifo')
pathlib.Path('/dev/shm/file').write_text('left')
pathlib.Path('file').write_text('kept')
orphan = subprocess.Popen(['setsid', '-f', 'env', '-i', 'sh', '-c', 'trap "" TERM HUP INT; while :; do sleep 1; done'])
"""


def test_a_restart_keeps_the_container_and_nothing_that_was_in_memory(executor: Executor, session: Session) -> None:
    assert session.execute(LEAVE).ok
    before = ids(executor)
    for epoch in (2, 3):
        session.restart()
        assert looked(session) == CLEAN
        result = session.execute("open('file').read(), 'orphan' in globals()")
        assert (result.text, result.kernel_epoch) == ("('kept', False)", epoch)
    assert ids(executor) == before
    assert Path(session.workspace, "file").read_text() == "kept"


@pytest.mark.parametrize(
    ("code", "cause", "exit_code"),
    named_cases(
        {
            "os._exit": ("import os; os._exit(3)", "exited", 3),
            "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "killed", 137),
            "exit": ("exit", "exited", 1),
        },
        {"SIGKILL"},
    ),
)
def test_a_kernel_that_ended_is_followed_by_one_in_its_container(
    executor: Executor, session: Session, code: str, cause: str, exit_code: int
) -> None:
    assert session.execute(LEAVE).ok
    before = ids(executor)
    result = session.execute(code)
    assert (result.state, result.cause, result.exit_code) == ("lost", cause, exit_code)
    assert looked(session) == CLEAN
    assert ids(executor) == before


def test_processes_of_a_kernel_end_with_it_without_a_successor(executor: Executor, session: Session) -> None:
    session.execute("import pathlib, subprocess")
    beats = "while :; do echo >> beat; sleep 0.05; done"
    assert session.execute(f"own = subprocess.Popen(['setsid', 'sh', '-c', {beats!r}])").ok
    assert session.execute("import time\nwhile not pathlib.Path('beat').exists(): time.sleep(0.01)").ok
    beat = Path(session.workspace, "beat")
    session.execute("import os, threading; threading.Timer(0.5, os._exit, [0]).start()")
    deadline, before = time.monotonic() + BOUND, 0
    while before != (before := beat.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.5)  # ten beats; a slow machine may have none of them, and sees less
    assert time.monotonic() < deadline
    assert len(ids(executor)) == 1


@pytest.mark.nightly
def test_the_mounts_in_what_is_cleared_are_left_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("ours")
    inside = "/tmp/deep/down/shared"
    with opened(tmp_path / "w", mounts=[{"source": shared, "target": inside, "read_only": False}]) as executor:
        session = executor.session("a")
        session.execute(f"open('{inside}/new', 'w').write('theirs'); open('/tmp/file', 'w').write('left')")
        before = ids(executor)
        session.restart()
        assert looked(session)["tmp"] == []
        assert session.execute(f"sorted(os.listdir('{inside}'))").text == "['file', 'new']"
        assert ids(executor) == before
    assert {path.name: path.read_text() for path in shared.iterdir()} == {"file": "ours", "new": "theirs"}


@pytest.mark.parametrize(
    "options",
    named_cases(
        {"a root that can be written": {"read_only_root": False}, "a container for each cell": {"mode": "ephemeral"}},
        {"a root that can be written"},
    ),
)
def test_there_is_a_new_container_where_the_old_one_would_not_be_as_new(tmp_path: Path, options: dict[str, Any]) -> None:
    with opened(tmp_path, **options) as executor:
        session = executor.session("a")
        actual = [session.execute("import socket; socket.gethostname()").text]
        session.restart()
        actual.append(session.execute("import socket; socket.gethostname()").text)
    assert len(set(actual)) == 2


def test_without_fork_server_there_is_a_new_container(tmp_path: Path) -> None:
    with opened(tmp_path, {"fork_server": False}) as executor:
        session = executor.session("a")
        session.execute("1")
        before = ids(executor)
        session.restart()
        assert session.execute("import os; os.getppid()").ok
        assert not before & ids(executor)


def test_there_is_a_new_container_if_it_cannot_be_cleared(executor: Executor, session: Session) -> None:
    deep = "import os\nos.chdir('/tmp')\nfor _ in range(300):\n    os.mkdir('d')\n    os.chdir('d')"
    assert session.execute(deep).ok
    before = ids(executor)
    session.restart()
    assert looked(session) == CLEAN
    assert not before & ids(executor)


@pytest.mark.nightly
def test_there_is_a_new_container_if_its_limits_were_changed(executor: Executor, session: Session) -> None:
    session.execute("1")
    before = ids(executor)
    session.set_limits(memory_bytes=400 << 20)
    session.restart()
    assert looked(session) == CLEAN
    assert not before & ids(executor)


def test_there_is_a_new_container_if_the_workspace_is_another_one(executor: Executor, session: Session) -> None:
    session.execute("1")
    before = ids(executor)
    location = Path(session.workspace)
    session.execute("import os; os._exit(0)")
    shutil.move(location, location.with_name("moved"))
    location.mkdir()
    try:
        assert session.execute("open('here', 'w').write('new')").ok
        assert (location / "here").read_text() == "new"
        assert not before & ids(executor)
    finally:
        shutil.rmtree(location.with_name("moved"))


@pytest.mark.nightly
def test_there_is_a_new_container_if_the_old_one_was_removed(executor: Executor, session: Session) -> None:
    session.execute("1")
    (before,) = ids(executor)
    session.execute("import os; os._exit(0)")
    with Engine() as engine:
        engine.remove(before)
    assert looked(session) == CLEAN
    assert ids(executor) != {before}


def test_a_container_that_is_asked_to_stop_does_and_another_one_follows(executor: Executor, session: Session) -> None:
    session.execute("1")
    (before,) = ids(executor)
    with Engine() as engine:
        engine.signal(before, 15)
        until(lambda: not engine.inspect_container(before).running)
    assert session.execute("1 + 1").text == "2"
    assert ids(executor) != {before}


def test_want_of_memory_is_reported_of_the_kernel_that_had_it(session: Session) -> None:
    greedy = "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))"
    for _ in range(2):
        assert session.execute(greedy).cause == "oom"
        assert session.execute("import os; os.kill(os.getpid(), 9)").cause == "killed"


def test_the_first_process_is_out_of_reach(session: Session) -> None:
    for name in ("environ", "mem", "maps", "root", "cwd", "fd/3"):
        path = f"/proc/1/{name}"
        looks = f"import os\ntry: os.stat({path!r}), open({path!r})\nexcept OSError as exc: print(exc.strerror)"
        assert session.execute(looks).stdout == "Permission denied\n", name


def test_an_image_whose_python_has_threads_from_the_start_is_served_too(tmp_path: Path) -> None:
    threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    settings = {"work_dir": tmp_path / "w", "environment": {"set": {"PYTHONPATH": "/workspace"}}}
    with opened(tmp_path, settings, layout="classic") as executor:
        (tmp_path / "w").mkdir(exist_ok=True)
        (tmp_path / "w" / "sitecustomize.py").write_text(threads)
        session = executor.session("a")
        assert looked(session)["parent"] == 1
        before = ids(executor)
        session.restart()
        assert looked(session)["parent"] == 1
        assert ids(executor) == before


def test_a_kernel_of_the_pool_is_followed_in_its_container_too(tmp_path: Path) -> None:
    with opened(tmp_path, {"pool": {"size": 1, "policy": "wait"}}, layout="classic") as executor:
        session = executor.session("a")
        first = session.execute("import socket; socket.gethostname()").text
        session.restart()
        assert session.execute("import socket; socket.gethostname()").text == first
        assert session.execute("open('file', 'w').write('here')").ok
        assert Path(session.workspace, "file").read_text() == "here"
