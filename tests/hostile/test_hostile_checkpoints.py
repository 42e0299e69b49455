"""Kernels that attack checkpoints and branches: they hold nothing up, forge no state, and leave nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from kernelexec import CheckpointRefused, Executor, KernelexecError, Session
from tests.conftest import EVERY_KIND, KINDS
from tests.support.pace import slow
from tests.support.remains import kernel_processes
from tests.support.takeovers import wait_until

pytestmark = pytest.mark.nightly

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_a_copy_that_does_not_wait_is_no_checkpoint",)

#: What a kernel does before it is copied. All copies run the functions that were registered for them.
COPIES_THAT_DO_NOT_WAIT = {
    "they end": "import os; os.register_at_fork(after_in_child=lambda: os._exit(0))",
    "they hang": "import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(600))",
    "they are stopped": "import os, signal; os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGSTOP))",
    "they fork for ever, one after the other": """
import os, time
def leave():
    for _ in range(20):
        time.sleep(0.2)
        if os.fork():
            os._exit(0)
        os.setsid()
    time.sleep(600)
os.register_at_fork(after_in_child=leave)
""",
    "they take the signals and start programs": """
import os, signal, subprocess, time
def start():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    time.sleep(600)
os.register_at_fork(after_in_child=start)
""",
}

#: Answers of a kernel that has made no checkpoint.
FORGED_ANSWERS = {
    "a checkpoint that is not there": {"checkpoint": {"number": 77, "cell": 1, "after": "", "seconds": 0.1, "name": None}},
    "a number that is none": {"checkpoint": {"number": -1, "cell": 10**30, "after": "x", "seconds": float("inf")}},
    "a path": {"checkpoint": {"number": "../../../etc/passwd", "cell": 1, "after": "", "seconds": 0.1}},
    "much": {"checkpoint": ["x" * 1_000_000]},
    "an obstacle that is none": {"obstacles": [{"kind": "x" * 1000, "names": ["y"] * 1000}, 3, None]},
    "nothing": {},
}

#: A process that listens in the place of a checkpoint that is newer than the kernel's own, and gives these answers.
IMPOSTOR = """
import os, socket
path = str(get_ipython().kernel.checkpoints._path(99))
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(path)
listening.listen()
if os.fork() == 0:
    os.setsid()
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            while connection.recv(1_000_000):
                for answer in {answers!r}:
                    connection.send(answer.encode())
            os._exit(0)
listening.close()
"""
#: A link in the place of the next branch's private directory.
LINK = """
import os
os.symlink({target!r}, get_ipython().kernel.checkpoints._path(99).parent / "b1")
"""
#: Seven processes in sessions of their own, one of them a grandchild whose parent has ended.
STARTS_PROCESSES = """
import os, subprocess
for _ in range(6):
    subprocess.Popen(["sleep", "600.25"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execlp("sleep", "sleep", "600.25")
    os._exit(0)
"""
DESCRIPTION = '{"checkpoint": {"pid": 1, "cell": 1, "name": null, "is_automatic": false, "after": ""}}'
ANSWERS_OF_IMPOSTORS = {
    "it is another process": [DESCRIPTION, '{"pid": 1}'],
    "it gives no process": [DESCRIPTION, '{"pid": -1}'],
    "it answers nonsense": ["[" * 60_000],
    "it does not answer": [],
    "it has died meanwhile": [DESCRIPTION, '{"pid": 4194303}'],
}


@pytest.fixture(params=EVERY_KIND)
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    settings = {**KINDS[request.param], "quiet": True, "budgets": {"grace": slow(2)}, "checkpoints": "named"}
    with Executor(request.param, workspace=tmp_path, config=settings) as opened:
        yield opened
    wait_until(lambda: kernel_processes() == {})


def assert_refused(call: Callable[[], object], session: Session, bystander: Session) -> None:
    """The call fails, though copies hang for ten minutes; the session answers afterwards, and the other one all the time."""
    with pytest.raises(KernelexecError):
        call()
    assert session.execute("keepsake").value == 1
    assert bystander.execute("keepsake").value == 2


@pytest.fixture
def session(owner: Executor) -> Session:
    session = owner.session("a")
    session.execute("keepsake = 1")
    return session


@pytest.fixture
def bystander(owner: Executor) -> Session:
    session = owner.session("bystander")
    session.execute("keepsake = 2")
    return session


@pytest.mark.parametrize("code", COPIES_THAT_DO_NOT_WAIT.values(), ids=COPIES_THAT_DO_NOT_WAIT)
def test_a_copy_that_does_not_wait_is_no_checkpoint(code: str, session: Session, bystander: Session) -> None:
    session.execute(code)
    assert_refused(session.checkpoint, session, bystander)
    session.close()


@pytest.mark.parametrize("code", COPIES_THAT_DO_NOT_WAIT.values(), ids=COPIES_THAT_DO_NOT_WAIT)
def test_a_copy_that_does_not_wait_is_no_branch(owner: Executor, code: str, session: Session, bystander: Session) -> None:
    session.execute(code)
    assert_refused(partial(session.branch, timeout=5), session, bystander)
    assert owner.sessions() == ("a", "bystander")
    assert list((session.workspace / ".kernelexec/branches").iterdir()) == []
    session.close()


@pytest.mark.parametrize("answer", FORGED_ANSWERS.values(), ids=FORGED_ANSWERS)
def test_a_forged_answer_makes_no_checkpoint_and_no_branch(answer: object, session: Session, bystander: Session) -> None:
    answers = f"lambda self, *_: setattr(self, 'last_answer', {answer!r})"
    session.execute(f"inf = float('inf')\ntype(get_ipython()).checkpoint = {answers}").raise_for_error()
    for call in (session.checkpoint, session.branch):
        assert_refused(call, session, bystander)
    assert session.checkpoints() == ()


@pytest.mark.parametrize("answers", ANSWERS_OF_IMPOSTORS.values(), ids=ANSWERS_OF_IMPOSTORS)
def test_an_impostor_of_a_checkpoint_forges_no_state(answers: list[str], session: Session, bystander: Session) -> None:
    checkpoint = session.checkpoint()
    session.execute(IMPOSTOR.format(answers=answers)).raise_for_error()
    assert {each.number for each in session.checkpoints()} <= {checkpoint.number, 99}
    result = session.execute("os._exit(3)")
    assert result.cause == "exited"
    assert result.state == "restored", result.notes  # of the kernel's own checkpoint
    assert [each.number for each in session.checkpoints()] == [checkpoint.number]
    assert session.execute("keepsake").value == 1
    assert bystander.execute("keepsake").value == 2


@pytest.mark.parametrize("answers", ANSWERS_OF_IMPOSTORS.values(), ids=ANSWERS_OF_IMPOSTORS)
def test_going_back_to_an_impostor_fails(answers: list[str], session: Session, bystander: Session) -> None:
    session.execute(IMPOSTOR.format(answers=answers)).raise_for_error()
    with pytest.raises(KernelexecError):
        session.restore(99)
    session.execute("1")
    assert session.execute("2").value == 2
    assert bystander.execute("keepsake").value == 2


def test_a_link_in_the_place_of_a_branches_directory_leads_nowhere(
    session: Session, bystander: Session, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    session.execute(LINK.format(target=str(outside))).raise_for_error()
    assert session.branch("b").execute("keepsake").value == 1
    assert not outside.exists()
    assert bystander.execute("keepsake").value == 2


def count_started() -> int:
    """The living processes of ``STARTS_PROCESSES``, in containers too."""
    return sum(process.info["cmdline"] == ["sleep", "600.25"] for process in psutil.process_iter(["cmdline"]))


def test_a_branch_ends_with_all_that_it_has_started(session: Session, bystander: Session) -> None:
    branch = session.branch("b")
    branch.execute(STARTS_PROCESSES).raise_for_error()
    wait_until(lambda: count_started() == 7)
    branch.close()
    wait_until(lambda: count_started() == 0)
    assert session.execute("keepsake").value == 1
    assert bystander.execute("keepsake").value == 2


@pytest.mark.parametrize("together", [True, False], ids=["together", "the parent first"])
def test_processes_of_branches_end_with_their_session(owner: Executor, session: Session, together: bool) -> None:  # noqa: FBT001 - a parameter
    branches = session.branch(n=2)
    for each in (session, *branches):
        each.execute(STARTS_PROCESSES).raise_for_error()
    wait_until(lambda: count_started() == 21)
    if not together:
        session.close()
        wait_until(lambda: count_started() == 14)
        assert branches[0].execute("keepsake").value == 1
    owner.close()
    wait_until(lambda: count_started() == 0)


def test_refusals_are_errors_of_checkpoints(session: Session) -> None:
    session.execute(COPIES_THAT_DO_NOT_WAIT["they end"])
    with pytest.raises(CheckpointRefused, match="ended at once"):
        session.checkpoint()
