"""Kernels of a user without an account in image or machine, and callers without root."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidWorkDir, Session
from kernelexec.kernel import request_once
from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory
from tests.conftest import KINDS
from tests.support.engine import needs_engine

pytestmark = [
    needs_engine,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can start kernels of other users"),
]

UID, GID = 4321, 4322
CONTAINER = {**dict(KINDS["container"]["container"]), "user": f"{UID}:{GID}"}  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    workspace = tmp_path_factory.mktemp("w")
    with Executor(
        isolation="container", workspace=workspace, config={"container": CONTAINER, "checkpoints": "named"}
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def session(executor: Executor) -> Session:
    return executor.session("u")


def runtime_of(session: Session) -> RuntimeDirectory:
    root = Path(os.environ["KERNELEXEC_RUNTIME_DIR"])
    (actual,) = root.glob("kx-*/u*/*/connection.json")
    return RuntimeDirectory(actual.parent)


def test_an_unknown_user_has_a_home_a_name_and_a_place_to_write(session: Session) -> None:
    names = "os.path.expanduser('~'), getpass.getuser(), os.path.expanduser('~x')"
    code = f"import getpass, os\nprint(os.getuid(), os.getgid(), {names})"
    assert session.execute(code).text == f"{UID} {GID} {session.workspace} kernel ~x\n"
    assert session.execute_command("id -u; touch $HOME/x && touch /tmp/x && echo $USER").text == f"{UID}\nkernel\n"


def test_all_that_is_made_in_the_workspace_belongs_to_that_user(session: Session) -> None:
    session.execute("import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()\nopen('made', 'w').close()")
    session.execute("display({'text/html': '<p>x</p>'}, raw=True)")
    session.save_notebook()  # no writing of it is under way then
    paths = [session.workspace, *session.workspace.rglob("*")]
    assert {path.name for path in paths} >= {"made", "outputs", "u.ipynb"}
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in paths} == {(UID, GID)}
    assert session.execute_command("rm -r outputs && echo gone").text == "gone\n"


def test_the_private_directory_is_shared_only_with_the_containers_user(session: Session) -> None:
    runtime = runtime_of(session)
    actual = {path.name: path.stat() for path in (runtime.path, *runtime.path.iterdir())}
    own = actual.pop(runtime.path.name)
    assert (stat.S_IMODE(own.st_mode), own.st_uid, own.st_gid) == (0o1770, 0, GID)
    modes = {
        name: (oct(stat.S_IMODE(actual[name].st_mode)), actual[name].st_uid, actual[name].st_gid) for name in ("ready", "owner")
    }
    assert modes == {"ready": ("0o620", 0, GID), "owner": ("0o640", 0, GID)}
    assert {path.stat().st_mode & 0o077 for path in runtime.path.parents if path.name.startswith(("kx-", "u"))} == {0}


def test_the_containers_user_cannot_change_files_of_the_owner(session: Session) -> None:
    code = f"""
import os
for name in ('connection.json', 'ready', 'owner'):
    path = '{runtime_of(session).path}/' + name
    for attempt in (lambda: os.unlink(path), lambda: os.rename(path, path + 'x'), lambda: os.chmod(path, 0o666),
                    lambda: os.replace('/proc/self/cwd/other', path)):
        try:
            attempt()
            print('done', name)
        except OSError as exc:
            pass
try:
    open('{runtime_of(session).path}/connection.json', 'a')
except PermissionError:
    print('kept')
"""
    session.execute("open('other', 'w').close()")
    assert session.execute(code).text == "kept\n"


def test_a_visitor_reaches_the_kernel_of_another_user(session: Session) -> None:
    session.execute("visible = 1")
    answer = asyncio.run(
        request_once(runtime_of(session), "kernelexec_variables_request", {"names": None, "limit": 10}, patience=20)
    )
    assert "visible" in str(answer)


def test_the_kernel_of_another_user_is_ended_and_replaced(session: Session) -> None:
    result = session.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (result.state, result.exit_code) == ("lost", 137)
    assert session.execute("import os; os.getuid()").text == str(UID)
    assert session.execute("while True: pass", timeout=0.5).state == "kept"


def test_a_users_directory_that_it_cannot_write_is_refused_and_left_alone(executor: Executor, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidWorkDir, match=rf"cannot be written by the kernels, which run as {UID}:{GID}"):
        executor.session("other", work_dir=tmp_path)
    assert tmp_path.stat().st_uid == 0
    assert not list(tmp_path.iterdir())
    os.chown(tmp_path, UID, GID)
    opened = executor.session("other", work_dir=tmp_path)
    assert opened.execute("open('x', 'w').close()").files == ("x",)
    opened.close()


#: Everything is imported while it can be read: the interpreter may be where only root can look.
AS_ANOTHER = """
import ctypes, os, stat, sys
from kernelexec import Executor, InvalidWorkDir, KernelexecError
place, image, uid = sys.argv[1], sys.argv[2], int(sys.argv[3])

def cells(name, **options):
    config = {"container": {"image": image, **options}, "checkpoints": "named"}
    with Executor(isolation="container", workspace=f"{place}/{name}", config=config) as executor:
        session = executor.session("a")
        print(session.execute("import os; print(os.getuid(), os.getgid())").text.strip(), flush=True)
        print(session.execute_command("echo made > file; echo done").text.strip(), flush=True)
        print(session.execute("import os; os._exit(3)").state, session.execute("1 + 1").text.strip(), flush=True)
        session.snapshot()
        print(os.stat(session.workspace / "file").st_uid, os.stat(session.notebook).st_uid, flush=True)

os.environ["KERNELEXEC_RUNTIME_DIR"] = "/tmp"
cells("first")
socket = os.stat("/var/run/docker.sock")
os.setgroups([socket.st_gid])
os.setgid(uid)
os.setuid(uid)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again: what an ordinary process of that user is
os.environ["KERNELEXEC_RUNTIME_DIR"] = os.environ["HOME"] = place
cells("second")
try:
    cells("third", user="1:1")
except (KernelexecError, InvalidWorkDir) as exc:
    print(type(exc).__name__, exc, flush=True)
"""


def test_a_caller_without_root_has_its_own_kernels(short_path: Path) -> None:
    os.chown(short_path, 1234, 1234)
    argv = [sys.executable, "-c", AS_ANOTHER, str(short_path), str(CONTAINER["image"]), "1234"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[:4] == ["0 0", "done", "lost 2", "0 0"]
    assert lines[4:8] == ["1234 1234", "done", "lost 2", "1234 1234"]
    assert lines[8].startswith("InvalidWorkDir")
    assert "which run as 1:1" in lines[8]
    assert not list(short_path.glob("kx-*"))
