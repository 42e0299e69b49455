"""What holds a kernel on this machine: what a cell tries, and its command, its thread and its grandchild, comes to nothing."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import ExecutionResult, Executor
from tests.support.engine import needs_bubblewrap
from tests.support.pace import BOUND

SECRET = "what-only-its-owner-reads"  # noqa: S105 - it is none
LAYERS = {"no-new-privileges", "landlock", *(["capabilities"] if os.geteuid() == 0 else [])}
#: What is tried, with the places of ``Place``; it fails, or what it did is seen.
FILES = {
    "make a file": "open(outside + '/made', 'w')",
    "make a directory": "os.mkdir(outside + '/made')",
    "make a link": "os.symlink('/etc/passwd', outside + '/made')",
    "make a pipe": "os.mkfifo(outside + '/made')",
    "make a socket": "socket.socket(socket.AF_UNIX).bind(outside + '/made')",
    "write on a file": "open(victim, 'a')",
    "empty a file": "os.truncate(victim, 0)",
    "remove a file": "os.remove(victim)",
    "remove a directory": "os.rmdir(outside + '/empty')",
    "move a file here": "os.rename(victim, 'mine')",
    "move a file there": "os.rename('own', outside + '/made')",
    "link a file here": "os.link(victim, f'mine{os.getpid()}{threading.get_ident()}')",
    "link a file there": "os.link('own', outside + '/made')",
    "write by a relative path": "open(os.path.relpath(victim), 'a')",
    "write through a link": "open(linked(victim), 'a')",
    "write through a linked directory": "open(linked(outside) + '/made', 'w')",
    "write through the root in proc": "open('/proc/self/root' + victim, 'a')",
    "write through a directory in proc": "open(f'/proc/self/fd/{os.open(outside, os.O_RDONLY)}/made', 'w')",
    "write to what is open for reading": "open(f'/proc/self/fd/{os.open(victim, os.O_RDONLY)}', 'a')",
    "write in the common temporary directory": "open('/tmp/kernelexec-made', 'w')",
    "write in another session's private directory": "open(os.environ['TMPDIR'] + '/../../made', 'w')",
    "read a key": "open(key).read()",
    "read a key by a relative path": "open(os.path.relpath(key)).read()",
    "read a key through a link": "open(linked(key)).read()",
    "read a key through a linked directory": "open(linked(os.path.dirname(key)) + '/id_ed25519').read()",
    "read a key through the root in proc": "open('/proc/self/root' + key).read()",
    "read a key that is linked here": "os.link(key, f'key{os.getpid()}{threading.get_ident()}')",
    "read a key that is moved here": "os.rename(key, 'key')",
    "read a key by its directory": "os.open('id_ed25519', os.O_RDONLY, dir_fd=os.open(os.path.dirname(key), os.O_PATH))",
    "read a store by its other name": "open(os.path.expanduser('~/.aws/credentials')).read()",
    "read a store that came later": "open(os.path.expanduser('~/.netrc')).read()",
    "read another session's keys": "open(others_connection).read()",
    "read another session's files": "open(others_file).read()",
    "read the journals": "open(journal).read()",
    "make a device": "os.mknod('device', 0o60666, os.makedev(7, 0))",
}
PROCESSES = {
    "read the owner's environment": "open(f'/proc/{server}/environ').read()",
    "read the owner's memory": "open(f'/proc/{server}/mem', 'rb').read(1)",
    "look at the owner's files": "os.readlink(f'/proc/{server}/fd/0')",
    "open the owner's descriptors": "open(f'/proc/{server}/fd/0')",
    "read the fork server's environment": "open(f'/proc/{forks}/environ').read()",
    "signal the owner": "os.kill(server, 0)",
    "signal the owner by descriptor": "signal.pidfd_send_signal(os.pidfd_open(server), 0)",
    "signal the fork server": "os.kill(forks, 0)",
    "signal another session's kernel": "os.kill(others_kernel, 0)",
    "trace the owner": "called(101, 16, server, 0, 0)",
    "write on the owner's score": "open(f'/proc/{server}/oom_score_adj', 'w')",
    "connect to an abstract socket": "socket.socket(socket.AF_UNIX).connect(abstract)",
    "change the machine's settings": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "mount": "called(165, b'none', b'/tmp', b'tmpfs', 0, None)",
    "read a disk": "[open(path, 'rb').read(1) for path in sorted(glob.glob('/dev/[svx]d[a-z]')) or ['/dev/mem']]",
}
NETWORK = {
    "connect by TCP": "socket.create_connection(('127.0.0.1', port), timeout=5)",
    "send by UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', port))",
    "connect by IPv6": "socket.socket(socket.AF_INET6).connect(('::1', port))",
    "listen": "socket.create_server(('127.0.0.1', 0))",
    "look up a name": "socket.getaddrinfo('localhost.example', 80)",
    "send packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "ask the machine's kernel": "socket.socket(socket.AF_NETLINK)",
    "connect to a unix socket": "socket.socket(socket.AF_UNIX).connect(unix)",
    "send to a unix socket": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', datagrams)",
    "send a message to a unix socket": "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendmsg([b'x'], [], 0, datagrams)",
    "use io_uring": "called(425, 1, bytes(120))",
    "ask with an address of another architecture": "called(0x40000000 + 42, 0, b'', 0)",
}
#: What namespaces have of their own, so that it works and reaches no other program.
ITS_OWN = {"signal another session's kernel", "listen", "send by UDP", "ask the machine's kernel", "use io_uring"}
REFUSED = ("PermissionError", "OSError", "FileNotFoundError", "ProcessLookupError", "ConnectionRefusedError", "gaierror")
MEANS = """
import ctypes, glob, os, signal, socket, threading, uuid
libc = ctypes.CDLL(None, use_errno=True)
def called(number, *args):
    if libc.syscall(ctypes.c_long(number), *args) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return 'it worked'
def linked(path):
    name = f'link-{uuid.uuid4().hex}'
    os.symlink(path, name)
    return name
def tried(code):
    try:
        return 'DONE ' + repr(eval(code))
    except OSError as exc:
        return type(exc).__name__
"""
#: Who tries it: each of them all, one after the other, and prints a line of what came of each.
WAYS = {
    "cell": "for code in codes: print(tried(code))",
    "thread": """
for code in codes:
    thread = threading.Thread(target=lambda: print(tried(code)))
    thread.start()
    thread.join()
""",
    "command": None,
    "grandchild": """
import subprocess, sys
child = 'import subprocess, sys; subprocess.run([sys.executable, "-c", sys.argv[1]])'
said = subprocess.run([sys.executable, '-c', child, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(said.stdout, end='')
""",
}


class Place:
    """A home with secrets, a directory outside the workspaces, another session; and their paths for a cell."""

    def __init__(self, base: Path, executor: Executor, codes: dict[str, str], **more: object) -> None:
        self.codes, self._outcomes = codes, dict[str, dict[str, str]]()
        self.outside = base / "outside"
        self.outside.mkdir(exist_ok=True)
        (self.outside / "empty").mkdir(exist_ok=True)
        self.victim = self.outside / "victim"
        self.victim.write_text("as it was")
        self.session, self.other = executor.session("mine"), executor.session("other")
        for session in (self.session, self.other):
            session.execute("open('own', 'w').write('its own')")
        (base / "home" / ".netrc").write_text(SECRET)
        connection = self.other.connection_file
        assert connection is not None
        answer = self.session.execute("import os; print(os.getppid())").stdout
        self.reported = {
            "outside": str(self.outside),
            "victim": str(self.victim),
            "key": str(base / "home" / ".ssh" / "id_ed25519"),
            "server": os.getpid(),
            "forks": int(answer),
            "others_kernel": int(self.other.execute("import os; print(os.getpid())").stdout),
            "others_connection": str(connection),
            "others_file": str(self.other.workspace / "own"),
            "journal": str(executor.config.absolute_workspace / ".journals" / "other.jsonl"),
            **more,
        }

    def try_out(self, what: str, way: str) -> str:
        """What comes of it: the error's name."""
        if way not in self._outcomes:
            self._outcomes[way] = dict(zip(self.codes, self._try_all(way), strict=True))
        return self._outcomes[way][what]

    def _try_all(self, way: str) -> list[str]:
        script = f"{MEANS}\nglobals().update({self.reported!r})\ncodes = {list(self.codes.values())!r}\n"
        alone = f"{script}{WAYS['cell']}"
        if way == "command":
            result: ExecutionResult = self.session.execute_command(f"{sys.executable} -", stdin=alone)
        else:
            result = self.session.execute(f"{script}script = {alone!r}\n{WAYS[way]}", timeout=BOUND)
        assert result.ok, result.text
        return result.stdout.splitlines()

    def unchanged(self) -> bool:
        """Whether all is as it was."""
        return (
            self.victim.read_text() == "as it was"
            and {path.name for path in self.outside.iterdir()} == {"victim", "empty"}
            and not Path("/tmp/kernelexec-made").exists()
        )


def _home(base: Path, patch: pytest.MonkeyPatch) -> None:
    for name in (".ssh/id_ed25519", ".aws/credentials"):
        (base / "home" / name).parent.mkdir(parents=True)
        (base / "home" / name).write_text(SECRET)
    patch.setenv("HOME", str(base / "home"))


@pytest.fixture(scope="module", params=["forked", "started", "idle"])
def location(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("place")
    options: dict[str, dict[str, object]] = {
        "forked": {},
        "started": {"fork_server": False},
        "idle": {"pool": {"size": 2, "policy": "wait"}},
    }
    with pytest.MonkeyPatch.context() as patch, socket.socket(socket.AF_UNIX) as abstract:
        _home(base, patch)
        abstract.bind(f"\0{base}")
        abstract.listen()
        with Executor("local", workspace=base / "workspaces", config=options[request.param]) as executor:
            yield Place(base, executor, FILES | PROCESSES, abstract=f"\0{base}")


@pytest.fixture(scope="module", params=["forked", "started"])
def offline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("offline")
    options = {"confinement": {"network": False}, "fork_server": request.param == "forked"}
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        _home(base, patch)
        unix.bind(str(base / "unix"))
        datagrams.bind(str(base / "datagrams"))
        unix.listen()
        with Executor("local", workspace=base / "workspaces", config=options) as executor:
            port, addresses = listening.getsockname()[1], {name: str(base / name) for name in ("unix", "datagrams")}
            yield Place(base, executor, NETWORK, port=port, **addresses)


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    base = tmp_path_factory.mktemp("wrapped")
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        _home(base, patch)
        unix.bind(str(base / "unix"))
        datagrams.bind(str(base / "datagrams"))
        abstract.bind(f"\0{base}")
        for item in (unix, abstract):
            item.listen()
        with Executor("bubblewrap", workspace=base / "workspaces") as executor:
            port, addresses = listening.getsockname()[1], {name: str(base / name) for name in ("unix", "datagrams")}
            yield Place(base, executor, FILES | PROCESSES | NETWORK, abstract=f"\0{base}", port=port, **addresses)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", FILES | PROCESSES)
def test_foreign_files_and_processes_stay_untouched(location: Place, what: str, way: str) -> None:
    answer = location.try_out(what, way)
    assert answer in ("PermissionError", "OSError", "FileNotFoundError", "ProcessLookupError"), answer
    assert location.unchanged()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", NETWORK)
def test_without_a_network_nothing_is_reached(offline: Place, what: str, way: str) -> None:
    answer = offline.try_out(what, way)
    assert answer in ("PermissionError", "OSError", "gaierror"), answer


@needs_bubblewrap
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", FILES | PROCESSES | NETWORK)
def test_in_namespaces_there_is_nothing_of_the_kind(wrapped: Place, what: str, way: str) -> None:
    answer = wrapped.try_out(what, way)
    assert answer in REFUSED or what in ITS_OWN, answer
    assert wrapped.unchanged()
