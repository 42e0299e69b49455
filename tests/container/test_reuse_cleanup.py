"""What a cell leaves for the kernels that follow in its container: nothing, or there is a new container."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, Executor, Session
from kernelexec.docker.client import Engine, ListedContainer
from kernelexec.docker.labels import WORKSPACE
from kernelexec.errors import KernelStartFailed
from kernelexec.provisioning import RuntimeDirectory
from kernelexec.provisioning.container.containers import create_container
from kernelexec.provisioning.provisioners import container
from tests.support.container_reuse import CLEAN, ids, looked, opened, small_executor, watched_session  # noqa: F401 - the two are fixtures
from tests.support.engine import IMAGE, needs_engine
from tests.support.night import named_cases
from tests.support.pace import BOUND

pytestmark = needs_engine


CHANGES = {
    "a limit": "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (40, 40))",
    "descriptors": "import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (20, 20))",
    "rank": "import os; os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "processors": "import os; os.sched_setaffinity(1, {0})",
    "idle": "import os; os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
    "a file among the devices": "open('/dev/file', 'w').write('left')",
    "a directory that cannot be written": (
        "import os, glob; [os.chmod(d, 0o500) for d in glob.glob('/tmp/**/kx-*/one/*', recursive=True)]"
    ),
}


@pytest.mark.parametrize(
    "change", named_cases(CHANGES, {"a limit", "a file among the devices", "a directory that cannot be written"})
)
def test_changes_of_the_first_process_do_not_last(executor: Executor, session: Session, change: str) -> None:
    probe = "import os, resource; os.nice(0), os.sched_getscheduler(0), len(os.sched_getaffinity(0)), " + ", ".join(
        f"resource.getrlimit(resource.RLIMIT_{name})" for name in ("CPU", "NOFILE")
    )
    before, there = session.execute(probe).text, ids(executor)
    assert session.execute(change).ok
    session.restart()
    assert session.execute(probe).text == before
    assert looked(session) == CLEAN
    assert not there & ids(executor)


def test_modes_of_what_is_in_memory_are_as_new(executor: Executor, session: Session) -> None:
    modes = "[oct(os.stat(path).st_mode) for path in ('/tmp', '/dev/shm', '/dev/mqueue')]"
    before = session.execute(f"import os; {modes}").text
    assert session.execute("[os.chmod(path, 0o555) for path in ('/tmp', '/dev/shm', '/dev/mqueue')]").ok
    there = ids(executor)
    session.restart()
    assert session.execute(f"import os; {modes}").text == before
    assert ids(executor) == there


def test_a_kernel_without_rights_to_the_directories_in_memory_keeps_its_container(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with opened(tmp_path, user="1000:1000") as executor:
        session = executor.session("a")
        owner = session.execute("import os; open('/tmp/file', 'w').write('left'); os.stat('/tmp').st_uid, os.getuid()")
        assert owner.text == "(0, 1000)"
        before = ids(executor)
        session.restart()
        assert session.execute("import os; os.path.exists('/tmp/file')").text == "False"
        assert ids(executor) == before


def test_directories_in_memory_are_cleared_whatever_leads_there(tmp_path: Path) -> None:
    places = ("/var/run/scratch", "/scratch dir")
    with opened(tmp_path, tmpfs=dict.fromkeys(places, 1 << 20)) as executor:
        session = executor.session("a")
        assert session.execute(f"import os\nfor path in {places}: open(f'{{path}}/file', 'w').write('left')").ok
        before = ids(executor)
        session.restart()
        assert session.execute(f"import os; [os.listdir(path) for path in {places}]").text == "[[], []]"
        assert ids(executor) == before


CLEARING = """
import os, subprocess, sys
from pathlib import Path
from kernelexec.launcher.launch.container_init import clear_tmpfs_and_ipc

top = Path(sys.argv[1])
for name in ("ours", "theirs"):
    (top / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", top / name], check=True)
    (top / name).chmod(0o1777)
    (top / name / "file").write_text(name)
(top / "link").symlink_to("theirs")
(top / "ours" / "deep").mkdir()
subprocess.run(["mount", "--bind", top / "theirs", top / "ours" / "deep"], check=True)
theirs = [(top / "theirs").stat().st_dev]
print(clear_tmpfs_and_ipc([str(top / "ours"), str(top / "link")], theirs), clear_tmpfs_and_ipc([str(top / "plain")], []))
print([(top / name / "file").exists() for name in ("ours", "theirs")])
print(clear_tmpfs_and_ipc([str(top / "ours")], theirs))
print([(top / name / "file").exists() for name in ("ours", "theirs", "ours/deep")])
"""


def test_mounts_of_this_machine_are_never_cleared(tmp_path: Path) -> None:
    command = ["unshare", "--mount", "--ipc", sys.executable, "-c", CLEARING, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["False False", "[True, True]", "True", "[False, True, True]"]


def test_limits_that_were_changed_and_changed_back_are_in_force(tmp_path: Path) -> None:
    with opened(tmp_path, memory_bytes=256 << 20, cpus=0.5) as executor:
        session = executor.session("a")
        session.set_limits(memory_bytes=512 << 20, cpus=1.0)
        session.execute("import os; os._exit(0)")
        session.set_limits(memory_bytes=256 << 20, cpus=0.5)
        assert session.execute("1").ok
        assert session.stats().memory_limit_bytes == 256 << 20


def test_a_container_that_is_created_after_its_session_was_cancelled_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config={"container": {"image": IMAGE}}) as executor:
            tasks = [asyncio.ensure_future(executor.session(name)) for name in ("closed", "cancelled")]
            assert await asyncio.to_thread(making.wait, BOUND)
            tasks[1].cancel()
            asyncio.get_running_loop().call_later(0.1, ending.set)  # the executor is ending by then
        await asyncio.gather(*tasks, return_exceptions=True)

    making, ending = threading.Event(), threading.Event()

    def slow(*args: Any) -> str:
        making.set()
        created = create_container(*args)
        assert ending.wait(BOUND)  # in the thread that makes it
        return created

    monkeypatch.setattr(container, "create_container", slow)
    asyncio.run(main())
    with Engine() as engine:
        assert engine.list_containers(f"{WORKSPACE}={tmp_path}") == []


def test_a_container_is_removed_whose_session_is_cancelled_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncExecutor("container", workspace=tmp_path, config={"container": {"image": IMAGE}}) as executor:
            task = asyncio.ensure_future(executor.session())
            assert await asyncio.to_thread(created.wait, BOUND)
            task.cancel()
            asyncio.get_running_loop().call_later(0.1, cancelled.set)  # the task has heard of it by then
            await asyncio.gather(task, return_exceptions=True)
            assert there() == []

    created, cancelled = threading.Event(), threading.Event()

    def there() -> list[ListedContainer]:
        with Engine() as engine:
            return engine.list_containers(f"{WORKSPACE}={tmp_path}")

    def slow(*args: Any) -> str:
        container = create_container(*args)
        created.set()
        assert cancelled.wait(BOUND)  # in the thread, whose mounts are not known yet
        return container

    monkeypatch.setattr(container, "create_container", slow)
    asyncio.run(main())
    assert created.is_set()


def test_a_private_directory_that_cannot_be_made_costs_no_container(
    executor: Executor, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    session.execute("import os; os._exit(0)")
    with monkeypatch.context() as patch:
        patch.setattr(RuntimeDirectory, "create", fails)
        with pytest.raises(KernelStartFailed, match="No space left on device"):
            session.execute("1")
    assert ids(executor) == set()
    assert session.execute("1 + 1").text == "2"
