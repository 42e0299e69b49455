"""Every process of a kernel is found and ended, wherever it went, and no other is."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec

from kernelexec.launcher.protocol import KERNEL_MARK_VARIABLE
from kernelexec.provisioning.launch.one_shot_task import TIMED_OUT, OneShotTask, run_process
from kernelexec.provisioning.provisioners.local import LocalKernelProvisioner
from kernelexec.provisioning.runtime.processes import UNKNOWN_STATUS, AdoptedProcess, ProcessMarker, SessionLeader

PATIENCE_MS = 30_000
#: Says its id and stays; says every signal of two that it gets.
STAYS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
print(os.getpid(), flush=True)
while True:
    print(int(signal.sigwait({signal.SIGUSR1, signal.SIGUSR2})), flush=True)
"""
#: Has the first process of a session start the given one without any environment.
BARE = 'env -i "$0" -c "$1"; :'
#: Leaves a process behind in a session of its own, and ends.
ORPHAN = 'setsid "$0" -c "$1" &'


def named(name: bytes) -> str:
    """Calls itself something, then stays."""
    return f"with open('/proc/self/comm', 'wb') as comm: comm.write({name!r})\n{STAYS}"


class Started:
    """A process that a test started, or had started, by its descriptor."""

    def __init__(self, parent: subprocess.Popen[str], pid: int) -> None:
        self.parent, self.pid = parent, pid
        self.pidfd = os.pidfd_open(pid)

    def says(self) -> str:
        assert self.parent.stdout is not None
        return self.parent.stdout.readline().strip()

    def gone(self) -> bool:
        """Whether the process ends, within a generous bound."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(PATIENCE_MS))

    def lives(self) -> bool:
        """Whether it still answers: a process that was killed never does."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGUSR2)
        return self.says() == str(int(signal.SIGUSR2))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        os.close(self.pidfd)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def start(stack: ExitStack, mark: ProcessMarker | None, *, shell: str = "", code: str = STAYS, session: bool = True) -> Started:
    """A python that runs the code, started by a shell or directly, with the mark or without."""
    argv = ["sh", "-c", shell] if shell else []
    environ = {**os.environ, **(mark.environ if mark else {})}
    python = [sys.executable, *([] if shell else ["-c"]), code]
    parent = stack.enter_context(
        subprocess.Popen([*argv, *python], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=session)
    )
    stack.callback(parent.kill)
    assert parent.stdout is not None
    started = Started(parent, int(parent.stdout.readline()))
    stack.callback(started.end)
    return started


@contextmanager
def zombie(mark: ProcessMarker) -> Iterator[int]:
    """A process that has ended and was not waited for."""
    with subprocess.Popen(["true"], env={**os.environ, **mark.environ}, start_new_session=True) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        yield ended.pid


def test_a_marked_child_is_found_and_its_unmarked_neighbour_is_not(stack: ExitStack) -> None:
    mark = ProcessMarker()
    child, _ = start(stack, mark), start(stack, None)
    assert mark.marked_pids() == [child.pid]


def test_a_child_of_the_same_session_and_group_is_found_by_its_mark(stack: ExitStack) -> None:
    mark = ProcessMarker()
    child = start(stack, mark, session=False)
    assert os.getsid(child.pid) == os.getsid(0)
    assert mark.marked_pids() == [child.pid]


def test_a_grandchild_that_left_its_session_and_lost_its_parent_is_found(stack: ExitStack) -> None:
    mark = ProcessMarker()
    orphan = start(stack, mark, shell=ORPHAN)
    assert orphan.parent.wait() == 0
    assert os.getsid(orphan.pid) == orphan.pid != orphan.parent.pid
    assert mark.marked_pids() == mark.marked_pids(SessionLeader.of(orphan.parent.pid)) == [orphan.pid]


def test_a_process_that_dropped_its_mark_is_found_by_its_session(stack: ExitStack) -> None:
    mark = ProcessMarker()
    bare = start(stack, mark, shell=BARE)
    leader = bare.parent.pid
    assert mark.marked_pids() == [leader]
    assert sorted(mark.marked_pids(SessionLeader.of(leader))) == sorted([leader, bare.pid])


def test_a_process_that_dropped_its_mark_is_found_after_the_first_of_its_session_ended(stack: ExitStack) -> None:
    mark = ProcessMarker()
    bare = start(stack, mark, shell=BARE)
    bare.parent.kill()
    bare.parent.wait()
    assert mark.marked_pids() == []
    assert mark.marked_pids(SessionLeader.of(bare.parent.pid)) == [bare.pid]
    assert mark.sweep(SessionLeader.of(bare.parent.pid)) >= 1
    assert bare.gone()


@pytest.mark.parametrize("near", ["{value}x", "x{value}", "", "{value} "])
def test_a_mark_that_is_nearly_the_same_is_another(stack: ExitStack, near: str) -> None:
    mark = ProcessMarker()
    start(stack, ProcessMarker(near.format(value=mark.value)))
    assert mark.marked_pids() == []


def test_no_two_marks_are_the_same() -> None:
    marks = [ProcessMarker() for _ in range(100)]
    assert len({mark.value for mark in marks}) == 100
    assert all(len(mark.value) == 32 for mark in marks)
    assert marks[0].environ == {KERNEL_MARK_VARIABLE: marks[0].value}


def test_a_sweep_kills_all_wherever_they_went_and_spares_the_unrelated(stack: ExitStack) -> None:
    mark = ProcessMarker()
    bare = start(stack, mark, shell=BARE)
    orphan, child = start(stack, mark, shell=ORPHAN), start(stack, mark)
    unmarked, neighbour, ours = start(stack, None), start(stack, ProcessMarker()), start(stack, None, session=False)
    assert mark.sweep(SessionLeader.of(bare.parent.pid)) >= 4
    assert bare.gone()
    assert orphan.gone()
    assert child.gone()
    assert bare.parent.wait() == -signal.SIGKILL
    assert unmarked.lives()
    assert neighbour.lives()
    assert ours.lives()


def test_a_sweep_without_a_session_leaves_what_dropped_its_mark(stack: ExitStack) -> None:
    mark = ProcessMarker()
    bare = start(stack, mark, shell=BARE)
    assert mark.sweep() >= 1
    assert bare.parent.wait() == -signal.SIGKILL
    assert bare.lives()


def test_a_stopped_process_is_swept(stack: ExitStack) -> None:
    mark = ProcessMarker()
    child = start(stack, mark)
    signal.pidfd_send_signal(child.pidfd, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert mark.sweep() >= 1
    assert child.gone()


def test_the_family_of_a_process_that_has_got_the_leaders_id_is_spared(stack: ExitStack) -> None:
    mark = ProcessMarker()
    bare = start(stack, None, shell=BARE)
    now = SessionLeader.of(bare.parent.pid)
    assert sorted(mark.marked_pids(now)) == sorted([bare.parent.pid, bare.pid])
    assert mark.marked_pids(SessionLeader(now.pid, now.born - 1)) == []
    assert mark.sweep(SessionLeader(now.pid, now.born - 1)) == 0


def test_a_sweep_without_a_user_kills_no_process() -> None:
    assert ProcessMarker().sweep() == 0
    assert ProcessMarker().sweep(SessionLeader(2**22 + 1, 0)) == 0  # no process can have this id


def test_a_process_that_takes_long_to_die_is_counted_once(stack: ExitStack) -> None:
    mark = ProcessMarker()
    child = start(stack, mark, code="held = b'x' * 300_000_000\n" + STAYS)
    killed = mark.sweep(SessionLeader.of(child.pid))
    assert child.gone()
    assert killed == 1


def test_a_zombie_is_no_process() -> None:
    mark = ProcessMarker()
    with zombie(mark) as pid:
        assert mark.marked_pids(SessionLeader.of(pid)) == []
        assert mark.sweep(SessionLeader.of(pid)) == 0


def test_a_zombie_does_not_hide_the_others(stack: ExitStack) -> None:
    mark = ProcessMarker()
    child = start(stack, mark)
    with zombie(mark):
        assert mark.sweep() >= 1
        assert child.gone()


def test_a_sweep_kills_every_holder_but_the_spared_one_and_leaves_no_descriptor(stack: ExitStack) -> None:
    mark = ProcessMarker()
    spared, child, orphan = start(stack, mark), start(stack, mark), start(stack, mark, shell=ORPHAN)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert mark.sweep(SessionLeader.of(spared.pid), {spared.pid}) == 2
    assert child.gone()
    assert orphan.gone()
    assert spared.lives()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", [b") Z 0 0 0 (", b"a b\n) S 1", b"()", b"\xff\xfe"])
def test_odd_process_names_do_not_hide_a_process(stack: ExitStack, name: bytes) -> None:
    mark = ProcessMarker()
    bare = start(stack, mark, shell=BARE, code=named(name))
    assert sorted(mark.marked_pids(SessionLeader.of(bare.parent.pid))) == sorted([bare.parent.pid, bare.pid])
    assert mark.sweep(SessionLeader.of(bare.parent.pid)) >= 2
    assert bare.gone()


def test_the_title_of_an_unrelated_process_hides_no_kernel(stack: ExitStack) -> None:
    mark = ProcessMarker()
    stranger = start(stack, None, code=named(b"\xff"))
    child = start(stack, mark)
    assert mark.marked_pids(SessionLeader.of(child.pid)) == [child.pid]
    assert mark.sweep(SessionLeader.of(child.pid)) >= 1
    assert child.gone()
    assert stranger.lives()


def test_a_kernel_is_killed_though_what_it_started_cannot_be_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the interpreter shuts down, where no thread can be started: it must not be left stopped."""

    def fails(*_: object) -> int:
        raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setattr(ProcessMarker, "sweep", fails)
    provisioner = LocalKernelProvisioner(kernel_id="a", kernel_spec=KernelSpec(argv=["sleep", "60"]))
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as kernel:
        provisioner.process, provisioner.marker = kernel, ProcessMarker()
        with pytest.raises(RuntimeError):
            asyncio.run(provisioner.kill())
        assert kernel.wait(60) == -signal.SIGKILL


def test_a_signal_to_a_process_that_has_ended_does_nothing() -> None:
    with subprocess.Popen(["true"]) as child:
        adopted = AdoptedProcess(child.pid, os.pidfd_open(child.pid))
    adopted.kill()
    adopted.terminate()
    adopted.close()


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3), ("kill -SEGV $$", -signal.SIGSEGV)])
def test_the_exit_status_of_another_ones_child_is_read(command: str, status: int) -> None:
    """Before its parent has waited for it, and after that where the system keeps it, as Linux does from 6.15 on."""
    with subprocess.Popen(["sh", "-c", command]) as child:
        first, second = (AdoptedProcess(child.pid, os.pidfd_open(child.pid)) for _ in range(2))
        assert first.wait() == status
    assert second.wait() in (status, UNKNOWN_STATUS)
    assert first.poll() == status


@pytest.mark.parametrize(("command", "seconds", "code"), [("exit 3", 60.0, 3), ("sleep 300", 2.0, TIMED_OUT)])
def test_a_task_does_not_wait_for_a_process_that_holds_its_output(
    command: str, seconds: float, code: int, tmp_path: Path
) -> None:
    held = f"(setsid env -i /bin/sh -c 'echo held; /bin/sleep 30; echo > {tmp_path}/over' &)"
    task = OneShotTask(tmp_path, {"fills": False}, seconds=seconds)
    argv = ["/bin/sh", "-c", f"echo begun; {held}; sleep 0.3; {command}"]
    result = asyncio.run(run_process(argv, {"PATH": os.environ["PATH"]}, task))
    assert (result.exit_code, result.output.partition("\n")[0]) == (code, "begun")
    assert not (tmp_path / "over").exists()


def test_the_end_of_a_tasks_output_is_kept(tmp_path: Path) -> None:
    task = OneShotTask(tmp_path, {"fills": False})
    code = "for number in range(100_000): print(number)"
    result = asyncio.run(run_process([sys.executable, "-c", code], {}, task))
    assert result.exit_code == 0
    assert result.output.endswith("\n99998\n99999\n")
    assert len(result.output) == 64 * 1024
