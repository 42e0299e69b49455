"""What kernels could share without a file of their workspaces: each is private or closed, or the guide says that it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import EVERY_KIND, WRAPPED, executor_of
from tests.support.engine import needs_bubblewrap

WAYS = [*EVERY_KIND, *(pytest.param(kind, marks=needs_bubblewrap) for kind in WRAPPED)]
#: The same, but that namespaces are tried at night.
FEWER_WAYS = [*EVERY_KIND, *(pytest.param(kind, marks=[needs_bubblewrap, pytest.mark.nightly]) for kind in WRAPPED)]
HEAD = """
import ctypes, json, os, socket, fcntl
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.sem_open.restype = ctypes.c_void_p
NAME, KEY = "kx-{name}", {key}
def attempt(call):
    try:
        value = call()
    except OSError:
        return False
    return value not in (-1, None, 2**64 - 1)
"""
#: Each shares something with a name, and the other session tries to find it.
SHARE = """
shared = {
    "shm": attempt(lambda: libc.shmget(KEY, 4096, 0o1666)),
    "private shm": attempt(lambda: libc.shmget(0, 4096, 0o1600)),
    "sem": attempt(lambda: libc.semget(KEY + 1, 1, 0o1666)),
    "msg": attempt(lambda: libc.msgget(KEY + 2, 0o1666)),
    "mqueue": attempt(lambda: libc.mq_open(f"/{NAME}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)),
}
stream, datagram = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
shared["stream"] = attempt(lambda: stream.bind("\\0" + NAME) or stream.listen() or True)
shared["datagram"] = attempt(lambda: datagram.bind("\\0d" + NAME) or True)
locked = open("locked.txt", "w"); fcntl.flock(locked, fcntl.LOCK_EX)
print(os.path.abspath("locked.txt"))
"""
FIND = """
results = {
    "shm": attempt(lambda: libc.shmget(KEY, 0, 0)),
    "private shm": any(attempt(lambda: libc.shmat(number, None, 0)) for number in range(200)),
    "sem": attempt(lambda: libc.semget(KEY + 1, 0, 0)),
    "msg": attempt(lambda: libc.msgget(KEY + 2, 0)),
    "mqueue": attempt(lambda: libc.mq_open(f"/{NAME}".encode(), os.O_RDWR)),
    "stream": attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + NAME) or True),
    "datagram": attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "\\0d" + NAME)),
    "lock": attempt(lambda: open(PATH) or True),
}
print(json.dumps(results))
"""


@pytest.mark.parametrize("kind", WAYS)
def test_a_session_finds_nothing_that_another_shares(kind: str, tmp_path: Path) -> None:
    with executor_of(kind, tmp_path) as executor:
        first, second = executor.session("first"), executor.session("second")
        head = HEAD.format(name=os.urandom(6).hex(), key=int.from_bytes(os.urandom(3)) + 1)
        path = first.execute(head + SHARE).stdout.strip()
        reply = second.execute(head + f"PATH = {path!r}\n" + FIND)
        results = json.loads(reply.stdout)
        assert results == dict.fromkeys(results, False)


@pytest.mark.parametrize("kind", FEWER_WAYS)
def test_shared_memory_and_locks_of_multiprocessing_work_in_a_session(kind: str, tmp_path: Path) -> None:
    code = (
        "from multiprocessing import Lock\nfrom multiprocessing.shared_memory import SharedMemory\n"
        "memory = SharedMemory(create=True, size=10); memory.buf[:2] = b'ok'\n"
        "other = SharedMemory(memory.name); text = bytes(other.buf[:2])\n"
        "other.close(); memory.unlink(); memory.close()\nwith Lock():\n    print(text)"
    )
    with executor_of(kind, tmp_path) as executor:
        assert executor.session().execute(code).stdout == "b'ok'\n"


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs_bubblewrap) for kind in WRAPPED])
def test_named_shared_memory_is_private_in_namespaces(kind: str, tmp_path: Path) -> None:
    with executor_of(kind, tmp_path) as executor:
        first, second = executor.session("first"), executor.session("second")
        name = f"/dev/shm/kx-{os.urandom(6).hex()}"
        assert first.execute(f"open({name!r}, 'w').close()").ok
        assert "FileNotFoundError" in second.execute(f"open({name!r})").text


SYSTEM_V = """
import ctypes, errno, json, sys
from kernelexec.launcher.sandbox.restrictions import set_no_new_privileges
from kernelexec.launcher.sandbox.restrictions import block_foreign_access
set_no_new_privileges()
block_foreign_access(allows_system_v=sys.argv[1] == "True")
libc = ctypes.CDLL(None, use_errno=True)
NONE = 1 << 30
calls = {
    "shmget": (12345, 0, 0), "semget": (12345, 0, 0), "msgget": (12345, 0),
    "shmctl": (NONE, 0, None), "semctl": (NONE, 0, 0, None), "msgctl": (NONE, 0, None), "semop": (NONE, None, 0),
}
names = {}
for name, arguments in calls.items():
    getattr(libc, name)(*arguments)
    names[name] = errno.errorcode.get(ctypes.get_errno())
print(json.dumps(names))
"""


def test_without_a_namespace_the_calls_of_system_v_are_refused() -> None:
    def run(*, allows: bool) -> list[str]:
        words = [sys.executable, "-c", SYSTEM_V, str(allows)]
        names: dict[str, str] = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
        return list(names.values())

    assert run(allows=False) == ["ENOSYS"] * 7
    assert "ENOSYS" not in run(allows=True)
