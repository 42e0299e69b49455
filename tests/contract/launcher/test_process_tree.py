"""What a kernel started ends with it, whatever it did to get away; and what it started is waited for."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import pytest

from kernelexec import Session
from tests.support.pace import BOUND, until
from tests.support.remains import process_of

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = (
    "test_nothing_outlives_its_kernel[container-an orphan without an environment-close]",
    "test_nothing_outlives_its_kernel[container-a session of its own-restart]",
    "test_nothing_outlives_its_kernel[container-an environment that was cleared-exit]",
    "test_orphans_that_ended_are_waited_for",
)
#: The tests count checkpoints and processes: none is made but by request.
CHECKPOINTS = "named"
#: Each leaves a process that writes its id to ``id`` and stays.
STAYS = "sh -c 'echo $$ > id.new; mv id.new id; exec sleep 600'"
WAYS = {
    "a command without an environment": f"get_ipython().run_command({f'env -i PATH=$PATH {STAYS} &'!r})",
    "a magic without an environment": f"get_ipython().system({f'env -i PATH=$PATH {STAYS} &'!r})",
    "a session of its own": f"get_ipython().run_command({f'env -i PATH=$PATH setsid {STAYS} &'!r})",
    "a child without an environment": (
        f"import subprocess, shlex\nsubprocess.Popen(shlex.split({STAYS!r}), env={{}}, start_new_session=True)"
    ),
    "an orphan without an environment": (
        f"import subprocess, shlex\n"
        f"subprocess.run(['sh', '-c', {f'{STAYS} &'!r}], env={{}}, start_new_session=True, stdout=subprocess.DEVNULL)"
    ),
    "an environment that was cleared": (
        f"import os\nos.environ.clear(); os.environ['PATH'] = '/usr/bin:/bin'\nget_ipython().run_command({f'{STAYS} &'!r})"
    ),
}
ENDS: dict[str, Callable[[Session], object]] = {
    "close": lambda session: session.close(),
    "restart": lambda session: session.restart(),
    "exit": lambda session: session.execute("exit()"),
}


def pidfd_of(session: Session) -> int:
    """The process that wrote its id."""
    path = session.workspace / "id"
    waited = session.execute("import os, time\nwhile not os.path.exists('id'): time.sleep(0.01)")
    assert waited.status == "ok"
    return os.pidfd_open(process_of(session, int(path.read_text())))


def gone(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    try:
        return bool(poll.poll(BOUND * 1000))
    finally:
        os.close(pidfd)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_nothing_outlives_its_kernel(session: Session, way: str, end: Callable[[Session], object]) -> None:
    assert session.execute(way).status == "ok"
    left = pidfd_of(session)
    end(session)
    assert gone(left)


def test_orphans_that_ended_are_waited_for(session: Session) -> None:
    session.execute_command("for n in 1 2 3 4 5; do sleep 0.01 & done")
    listed = "import os, pathlib\nlist(pathlib.Path(f'/proc/self/task/{os.getpid()}').joinpath('children').read_text().split())"
    until(lambda: session.execute(listed).text == "[]")


def test_the_exit_code_of_a_child_is_its_parents_to_ask_for(session: Session) -> None:
    code = (
        "from subprocess import Popen\np = Popen('exit 7', shell=True)\nq = Popen('exit 8', shell=True, start_new_session=True)"
    )
    session.execute(code)
    ended = "import os\nfor child in (p, q): os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)"
    assert session.execute(ended).ok
    assert session.execute("p.wait(), q.wait()").text == "(7, 8)"
