"""Memory that gets short is reported before it is used up, and a kill for lack of memory is distinguished from others."""

from __future__ import annotations

import pytest

from kernelexec import MemoryHigh, Session
from kernelexec.events import Event
from tests.support.low_memory import MIB, Tight
from tests.support.pace import slow

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = (
    "test_a_command_that_is_killed_for_want_of_memory_costs_no_state",
    "test_a_cell_that_leaves_little_memory_says_what_uses_it_and_hooks_are_called_once",
    "test_files_that_were_read_do_not_count",
)
#: The tests lose the state, so no cell has a checkpoint.
CHECKPOINTS = "named"
#: It fills slowly where it may be noticed: the kernel looks twice a second.
FILLS = "parts = []\nfor n in range(500):\n    parts = [*parts, bytearray(b'x') * 2_000_000]\n"
FILLS += "    time.sleep(0.03 if n < 40 else 0.08)"
HUNGRY = "python3 -c \"y = bytearray(b'x') * 500_000_000\""


def verdict(result: object) -> tuple[object, ...]:
    return tuple(getattr(result, name) for name in ("status", "exit_code", "state", "cause"))


def test_a_command_that_is_killed_for_want_of_memory_costs_no_state(tight_session: Session) -> None:
    tight_session.execute("x = 1")
    result = tight_session.execute_command(HUNGRY)
    assert verdict(result) == ("error", 137, "kept", None)
    (note,) = result.notes
    assert "One process was killed for want of memory" in note
    assert "64 MiB" in note
    following = tight_session.execute("x")
    assert (following.text, following.notes) == ("1", ())


def test_a_kernel_that_is_killed_by_its_own_cell_after_a_child_ran_out_of_memory_did_not_run_out_of_it(
    tight_session: Session,
) -> None:
    assert tight_session.execute_command(HUNGRY).exit_code == 137
    result = tight_session.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert verdict(result) == ("error", 137, "lost", "killed")


def test_a_kernel_that_runs_out_of_memory_after_a_child_did_says_so(tight_session: Session) -> None:
    assert tight_session.execute_command(HUNGRY).exit_code == 137
    result = tight_session.execute("y = bytearray(b'x') * 500_000_000")
    assert verdict(result) == ("error", 137, "lost", "oom")


def test_a_cell_that_leaves_little_memory_says_what_uses_it_and_hooks_are_called_once(tight: Tight) -> None:
    events: list[Event] = []
    session = tight.session(256 * MIB, [events.append])
    quiet = session.execute("small = bytearray(2 * 2**20)\nbig = bytearray(b'x') * 100_000_000")
    assert quiet.notes == ()
    result = session.execute("bigger = bytearray(b'x') * 104_857_600")
    (note,) = result.notes
    assert "of 256 MiB in use; biggest: bigger 100 MiB, big 95 MiB, small 2.0 MiB" in note
    again = session.execute("1")
    assert again.notes == (note,) or "of 256 MiB in use" in again.notes[0]
    (high,) = [event for event in events if isinstance(event, MemoryHigh)]
    assert high.limit_bytes == 256 * MIB
    assert high.limit_bytes >= high.used_bytes >= 0.8 * high.limit_bytes
    assert [holder.name for holder in high.biggest] == ["bigger", "big", "small"]
    session.execute("del bigger")
    session.execute("bigger = bytearray(b'x') * 104_857_600")
    assert sum(isinstance(event, MemoryHigh) for event in events) == 2


@pytest.mark.nightly
def test_a_cell_that_fills_the_memory_step_by_step_is_warned_of_before_it_dies(tight: Tight) -> None:
    events: list[Event] = []
    session = tight.session(256 * MIB, [events.append])
    session.execute("import time\nkept = bytearray(b'x') * 60_000_000")
    result = session.execute(FILLS, timeout=60)
    assert verdict(result) == ("error", 137, "lost", "oom")
    assert any("kept 57 MiB" in note for note in result.notes)
    assert any(isinstance(event, MemoryHigh) for event in events)


def test_a_peak_within_a_cell_is_reported_as_one(tight: Tight) -> None:
    session = tight.session(256 * MIB)
    result = session.execute(f"import time\nbig = bytearray(b'x') * 200_000_000\ntime.sleep({slow(3)})\ndel big")
    (note,) = result.notes
    assert note.startswith("While the cell ran, memory: ")
    assert "big 190 MiB" in note
    assert session.execute("1").notes == ()


def test_files_that_were_read_do_not_count(tight: Tight) -> None:
    session = tight.session(256 * MIB)
    # Pages that wait to be written cannot be given back, so few may wait at any time.
    code = "import os\nwith open('large', 'wb') as f:\n    for _ in range(30): f.write(b'x' * 10 * 2**20), os.fsync(f)\n"
    code += "with open('large', 'rb') as f:\n    while f.read(2**20): pass\nos.remove('large')"
    assert session.execute(code).notes == ()


@pytest.mark.parametrize("code", ["import os\nos.kill(os.getpid(), 9)", "raise MemoryError"])
def test_other_failures_are_not_reported_as_a_lack_of_memory(tight_session: Session, code: str) -> None:
    result = tight_session.execute(code)
    assert result.cause != "oom"
    assert not any("memory" in note for note in result.notes)
