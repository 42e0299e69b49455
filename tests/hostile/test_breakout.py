"""Ways out of a container, each tried from a cell: each fails, the server stays as it is, and the next cell runs.

What the engine's own profile refuses (seccomp, masked files) is tried too: it is depth behind the missing capabilities.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from kernelexec.docker.client import Engine
from kernelexec.errors import KernelNotAnswering
from kernelexec.kernel import request_once
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from tests.conftest import KINDS
from tests.support.engine import needs_engine
from tests.support.night import named_cases
from tests.support.pace import BOUND, slow
from tests.support.peak_memory import forget_peak, peak_bytes

pytestmark = needs_engine

IMAGE = dict(KINDS["container"]["container"])  # type: ignore[call-overload]
MIB = 1024 * 1024
SECRET = "what-only-this-machine-knows"  # noqa: S105 - it is none
#: What a cell tries: the name of the error, or DONE with what came of it.
MEANS = """
import ctypes, glob, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *args):
    try:
        return 'DONE ' + repr(call(*args))
    except BaseException as exc:
        return type(exc).__name__
def called(number, *args):
    libc.syscall.restype = ctypes.c_long
    found = libc.syscall(ctypes.c_long(number), *args)
    return 'DONE' if found >= 0 else os.strerror(ctypes.get_errno())
def read(path):
    with open(path, 'rb') as file:
        return file.read(4096)
def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        sock.connect(address)
"""
#: Calls to the machine's kernel, by their numbers on x86-64; each answers that it is not permitted.
CALLS = {
    "mount": "165, b'none', b'/tmp', b'tmpfs', 0, None",
    "umount": "166, b'/proc', 2",
    "pivot_root": "155, b'/tmp', b'/tmp'",
    "chroot": "161, b'/tmp'",
    "unshare the users": "272, 0x10000000",
    "unshare the mounts": "272, 0x20000",
    "setns": "308, os.open('/proc/self/ns/mnt', os.O_RDONLY), 0",
    "mknod": "133, b'/tmp/device', 0o60666, 0x800",
    "reboot": "169, 0xfee1dead, 672274793, 0x1234567, None",
    "load a module": "175, b'', 0, b''",
    "bpf": "321, 5, None, 0",
    "perf_event_open": "298, None, 0, -1, -1, 0",
    "add_key": "248, b'user', b'name', b'x', 1, -2",
    "keyctl": "250, 0, -3, 0",
    "open_by_handle_at": "304, -100, b'x' * 64, 0",
    "settimeofday": "164, b'x' * 16, None",
    "sethostname": "170, b'x', 1",
    "swapon": "167, b'/tmp/x', 0",
    "raise the limit of files": "160, 7, (ctypes.c_ulong * 2)(1 << 20, 1 << 20)",
}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    options = {**IMAGE, "memory_bytes": 512 * MIB, "pids": 64}
    config = {
        "container": options,
        "budgets": {"grace": 1.0, "compiled": 1.0},
        "rules": {"dangers": False},  # the wall is what is tried
        "checkpoints": "named",
    }
    with Executor(isolation="container", workspace=tmp_path_factory.mktemp("w"), config=config) as opened:
        yield opened


@pytest.fixture(scope="module")
def bystander(executor: Executor) -> Session:
    """Another agent, which must not notice anything."""
    session = executor.session("bystander")
    session.execute(f"count = 0\nopen('own', 'w').write({SECRET!r})")
    return session


@pytest.fixture(scope="module")
def attacker(executor: Executor) -> Session:
    session = executor.session("attacker")
    assert session.execute(MEANS).ok
    return session


@pytest.fixture
def session(attacker: Session, bystander: Session) -> Iterator[Session]:
    """The attacker; after each attack the server is as large as before, and both sessions run cells."""
    attacker.execute(MEANS)
    before = forget_peak()
    yield attacker
    assert peak_bytes() - before < 50 * MIB
    assert attacker.execute("1 + 1", timeout=BOUND).text == "2"
    seen = bystander.execute("count += 1; count")
    assert (seen.status, seen.state, seen.kernel_epoch) == ("ok", "kept", 1)


def runtime_of(session: Session) -> RuntimeDirectory:
    (root,) = Path(os.environ["KERNELEXEC_RUNTIME_DIR"]).glob(f"kx-*/{session.name[:8]}")
    return RuntimeDirectory(root / str(session.execute("1").kernel_epoch))


def says(session: Session, expression: str) -> str:
    return session.execute(f"print({expression})").text.strip()


def test_no_file_of_this_machine_can_be_read(session: Session, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    ways = f"['{secret}', *(root + '{secret}' for way in ('root', 'cwd') for root in glob.glob('/proc/[0-9]*/' + way))]"
    assert says(session, f"sorted({{tried(read, path) for path in {ways}}} - {{'PermissionError'}})") == "['FileNotFoundError']"
    session.execute(f"os.symlink('{secret}', 'link')\nos.symlink('/etc/shadow', 'shadow')")
    assert says(session, "tried(read, 'link')") == "FileNotFoundError"
    own = Path("/etc/shadow").read_text() if os.getuid() == 0 else SECRET
    assert own not in session.execute("print(tried(read, 'shadow'))").text
    for path in ("/proc/kcore", "/proc/kmem", "/dev/mem", "/dev/sda", "/proc/timer_list", "/proc/keys"):
        assert says(session, f"tried(read, '{path}')") in ("FileNotFoundError", "PermissionError", "OSError", "DONE b''"), path
    assert session.execute("os.remove('link'); os.remove('shadow')").ok


def test_a_link_in_the_workspace_leads_our_side_nowhere(session: Session, tmp_path: Path) -> None:
    """The notebook, saved displays and the list of files are made by us, where the cell can put links."""
    aim = tmp_path / "aim"
    aim.mkdir()
    (aim / "precious").write_text(SECRET)
    assert session.notebook is not None
    name = session.notebook.name
    code = f"import shutil\nshutil.rmtree('outputs', ignore_errors=True)\nos.symlink('{aim}', 'outputs')\n"
    code += f"os.symlink('{aim}/precious', 'made')\nos.replace('made', {name!r})\nos.symlink('{aim}', 'listed')"
    linked = session.execute(code)
    assert linked.ok, linked.text
    shown = session.execute("display({'text/html': '<p>x</p>'}, raw=True)")
    assert not any("precious" in path or path.startswith(("listed", "outputs")) for path in shown.files)
    assert [path.name for path in aim.iterdir()] == ["precious"]
    session.save_notebook()
    assert (aim / "precious").read_text() == SECRET
    assert not session.notebook.is_symlink()
    assert session.execute("os.remove('outputs'); os.remove('listed')").ok


def test_no_socket_of_this_machine_can_be_reached(session: Session, short_path: Path) -> None:
    addresses: list[tuple[int, Any]] = [
        (socket.AF_UNIX, str(short_path / "s")),
        (socket.AF_UNIX, f"\0kernelexec-{os.getpid()}"),
        (socket.AF_INET, ("127.0.0.1", 0)),
    ]
    for family, address in addresses:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as server:
            server.bind(address)
            server.listen()
            actual = server.getsockname()
            actual = "\0" + actual[1:].decode() if isinstance(actual, bytes) else actual
            assert says(session, f"tried(connect, {family:d}, {actual!r})") in ("ConnectionRefusedError", "FileNotFoundError")
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
        assert says(session, f"tried(connect, 1, '{path}')") == "FileNotFoundError"
    assert says(session, "tried(connect, 2, ('172.17.0.1', 80))") == "OSError"


def test_another_agent_can_neither_be_seen_nor_reached(session: Session, bystander: Session) -> None:
    assert says(session, f"os.path.exists('{bystander.workspace}')") == "False"
    own, other = runtime_of(session).path, runtime_of(bystander).path
    assert (
        says(session, f"os.listdir('{own.parent}'), os.listdir('{own.parent.parent}')")
        == f"['{own.name}'] ['{own.parent.name}']"
    )
    assert (
        says(session, f"tried(connect, 1, '{other}/s-1'), tried(read, '{other}/connection.json')")
        == "FileNotFoundError FileNotFoundError"
    )
    processes = says(session, "[read(p + '/cmdline') for p in glob.glob('/proc/[0-9]*')]")
    assert "bystander" not in processes
    assert 2 <= processes.count("b'") <= 4


def test_a_signal_to_all_ends_only_the_senders_own_processes(session: Session) -> None:
    session.execute("import subprocess\nown = subprocess.Popen(['sleep', '600'])")
    assert says(session, "tried(os.kill, -1, signal.SIGKILL), own.wait(60)") == "DONE None -9"
    assert says(session, "tried(os.kill, -1, signal.SIGKILL)") == "ProcessLookupError"


@pytest.mark.parametrize("signum", ["SIGKILL", "SIGSTOP"])
def test_the_first_process_of_the_container_cannot_be_ended_from_within(session: Session, signum: str) -> None:
    epoch = session.execute("1").kernel_epoch
    assert session.execute(f"os.kill(1, signal.{signum})\ntime.sleep(0.2)").ok
    assert session.execute("1").kernel_epoch == epoch


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_could_open_the_wall_is_not_permitted(session: Session, call: str) -> None:
    refused = ("Operation not permitted", "Function not implemented", "Permission denied", "Read-only file system")
    assert says(session, f"called({call})") in refused


@pytest.mark.parametrize("path", ["kernel/core_pattern", "vm/overcommit_memory", "kernel/hostname"])
def test_a_setting_of_the_machine_cannot_be_changed(session: Session, path: str) -> None:
    before = Path("/proc/sys", path).read_bytes()
    assert says(session, f"tried(lambda: open('/proc/sys/{path}', 'w').write('|/tmp/x'))") in ("OSError", "PermissionError")
    assert Path("/proc/sys", path).read_bytes() == before


def test_sockets_that_became_links_to_others_are_not_spoken_to(session: Session, short_path: Path) -> None:
    runtime = runtime_of(session)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as victim:
        victim.bind(str(short_path / "s"))
        victim.listen()
        victim.settimeout(0.5)  # for a connection that must not come
        code = f"for n in range(1, 6):\n    path = f'{runtime.path}/s-{{n}}'\n    os.unlink(path)\n"
        code += f"    os.symlink('{short_path}/s', path)"
        assert session.execute(code).ok
        with pytest.raises(KernelNotAnswering, match="cannot be reached"):
            asyncio.run(request_once(runtime, "kernelexec_variables_request", {}, patience=5))
        assert session.execute("1 + 1").text == "2"  # the connection that there is goes on
        with pytest.raises(TimeoutError):
            victim.accept()
    session.restart()


PUT = {
    "links": "os.symlink('/etc/shadow', path)",
    "pipes": "os.mkfifo(path)",
    "directories": "os.mkdir(path)",
    "huge files": "open(path, 'wb').truncate(1 << 40)",
    "rubbish": "open(path, 'wb').write(os.urandom(3 << 20))",
}


@pytest.mark.parametrize("put", named_cases(PUT, {"links"}))
def test_replaced_files_of_a_kernel_harm_only_the_kernel(session: Session, put: str) -> None:
    runtime = runtime_of(session)
    names = ["connection.json", "ready", "owner", "stacks", "words", "stderr", "s-1", "s-4"]
    code = f"for name in {names!r}:\n    path = '{runtime.path}/' + name\n"
    code += f"    if os.path.lexists(path):\n        os.unlink(path)\n    {put}"
    assert session.execute(code).ok
    with pytest.raises(KernelNotAnswering):
        asyncio.run(request_once(runtime, "kernelexec_variables_request", {}, patience=2))
    swallowing = "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
    result = session.execute(swallowing, timeout=slow(3))
    assert (result.interrupted, result.state) == ("timeout", "lost")
    assert "root:" not in result.text
    assert not runtime.connection_file.exists()
    assert not list(runtime.path.glob("*"))


def test_a_fork_bomb_meets_the_limit_of_its_container(session: Session) -> None:
    session.execute("keepsake = 1")
    result = session.execute_command("bomb() { bomb | bomb & }; bomb; sleep 60", timeout=3)
    assert result.status == "error"
    following = session.execute("keepsake", timeout=BOUND)
    assert following.ok or following.state == "lost"


@pytest.mark.nightly
def test_a_stopped_kernel_is_replaced(session: Session) -> None:
    result = session.execute("os.kill(os.getpid(), signal.SIGSTOP)", timeout=slow(3))
    assert (result.interrupted, result.state, result.ended_by) == ("timeout", "lost", "kill")


def test_a_kernel_without_descriptors_runs_the_next_cell(session: Session) -> None:
    result = session.execute("held = []\nwhile True:\n    held.append(os.open('/dev/null', os.O_RDONLY))")
    assert result.error is not None
    assert "Too many open files" in result.error.evalue
    with suppress(KernelNotAnswering):  # one visitor more than it can take may cost the kernel its life
        asyncio.run(request_once(runtime_of(session), "kernelexec_variables_request", {}, patience=2))
    session.execute("for fd in globals().pop('held', []):\n    os.close(fd)", timeout=BOUND)


def test_direct_writes_to_the_containers_log_are_capped(session: Session) -> None:
    with Engine() as engine:
        own = engine.list_containers(f"kernelexec.workspace={session.workspace.parent}")
        answers = [engine.api.inspect_container(item.id) for item in own]
        (container,) = [answer for answer in answers if str(session.workspace) in str(answer["Mounts"])]
        code = "for path in ('/proc/1/fd/1', '/proc/1/fd/2'):\n    with open(path, 'wb') as file:\n"
        code += "        for _ in range(20):\n            file.write(b'x' * (1 << 20))"
        session.execute(code, timeout=60)
        assert len(engine.logs(container["Id"])) <= 4096
    if os.getuid() == 0:
        assert Path(container["LogPath"]).stat().st_size < 3 * MIB


def test_an_allocation_over_the_limit_costs_its_kernel_only(tmp_path: Path, bystander: Session) -> None:
    config = {"container": {**IMAGE, "memory_bytes": 64 * MIB}}
    with Executor(isolation="container", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        before = forget_peak()
        result = session.execute("x = bytearray(500 << 20)\nx[::4096] = b'x' * len(x[::4096])", timeout=60)
        assert (result.status, result.state, result.exit_code) == ("error", "lost", 137)
        assert peak_bytes() - before < 50 * MIB
        assert session.execute("1 + 1").text == "2"
    assert bystander.execute("1 + 1").text == "2"


@pytest.fixture
def small_disk(short_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, which a cell can fill without harm to anybody."""
    directory = short_path / "d"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_costs_what_is_written_and_nothing_else(
    small_disk: Path, bystander: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(small_disk))
    before = forget_peak()
    with Executor(isolation="container", workspace=small_disk / "w", config={"container": IMAGE}) as executor:
        session = executor.session("a")
        session.execute("keepsake = 1")
        (runtime,) = small_disk.glob("kx-*/a/1")
        code = f"for place in ('{runtime}', '.'):\n    try:\n        for n in range(100):\n"
        code += "            open(f'{place}/full-{n}', 'wb').write(b'x' * (1 << 20))\n"
        code += "    except OSError as exc:\n        print(exc.errno)"
        full = session.execute(code)
        assert full.stdout == "28\n28\n"
        after = session.execute("keepsake")
        assert (after.text, after.state) == ("1", "kept")
        assert session.execute(
            f"import glob, os\nfor path in glob.glob('full-*') + glob.glob('{runtime}/full-*'):\n    os.remove(path)"
        ).ok
        assert session.execute("keepsake").text == "1"
        assert session.notebook is not None
        session.save_notebook()
        assert "full-" in session.notebook.read_text()
    assert peak_bytes() - before < 50 * MIB
    assert bystander.execute("1 + 1").text == "2"
