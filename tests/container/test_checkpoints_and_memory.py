"""A container that reaches its memory limit: checkpoints cost no cell its memory, and a cell that needs too much no state."""

from __future__ import annotations

from pathlib import Path

from kernelexec import Executor
from tests.support.engine import IMAGE, needs_engine

pytestmark = needs_engine


def test_a_kernel_that_is_killed_for_its_memory_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    config = {"checkpoints": "each", "quiet": True}
    with Executor(image=IMAGE, workspace=tmp_path, memory="256m", config=config) as executor:
        session = executor.session()
        for number in range(2):  # the second time from a checkpoint of a kernel that has gone on from one
            session.execute(f"kept = {number}")
            killed = session.execute("pages = [bytearray(1 << 20) for _ in range(400)]")
            assert (killed.state, killed.cause, killed.exit_code, killed.lost_names) == ("restored", "oom", 137, ())
            assert session.execute("kept").value == number


def test_checkpoints_are_ended_before_a_kernel_that_writes_to_what_it_shares_with_them(tmp_path: Path) -> None:
    config = {"checkpoints": "each", "quiet": True}
    with Executor(image=IMAGE, workspace=tmp_path, memory="256m", config=config) as executor:
        session = executor.session()
        for number in range(4):  # with the first checkpoint the memory of both exceeds the limit
            changed = session.execute("pages = bytearray(100 << 20)" if number == 0 else "pages[::4096] = bytes(25600)")
            assert (changed.state, changed.ok) == ("kept", True), changed.notes
        again = session.execute("for n in range(len(pages) >> 12): pages[n << 12] = 7")
        assert (again.state, again.ok) == ("kept", True), again.notes
        note = "checkpoint was dropped for want of memory."
        assert any(note in text for text in (*changed.notes, *again.notes)), (changed.notes, again.notes)
        assert session.execute("pages[4096]").value == 7
