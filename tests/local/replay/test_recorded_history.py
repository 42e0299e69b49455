"""What a journal knows more than a notebook: commands, ends, snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from kernelexec import AsyncExecutor, Replay
from kernelexec.executor.replay import replay
from kernelexec.rules.recorded_history import History, RecordedCell
from tests.support.night import at_night


def played(executor: AsyncExecutor, name: str, past: History) -> Any:
    async def play() -> tuple[Replay, str]:
        session = await executor.session(name)
        actual = await replay(session, past, source="a past", timeout=20.0)
        return actual, (await session.execute("sorted(k for k in globals() if len(k) == 1 and k != '_')")).text.strip()

    return play()


def test_commands_are_repeated_as_commands(tmp_path: Path) -> None:
    past = History(
        (
            RecordedCell("mkdir -p sub && cd sub && export MODE=fast", "command", status="ok"),
            RecordedCell("pwd; test $MODE = fast", "command", status="ok"),
            RecordedCell("cat", "command", stdin="hello", status="ok"),
            RecordedCell("ls", "command", work_dir=str(tmp_path / "gone"), status="ok"),
            RecordedCell("exit 7", "command", status="error"),
            RecordedCell("false", "command", status="ok"),
            RecordedCell("touch ran", "command", omissions="environment variables", status="ok"),
        )
    )

    async def run() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path) as executor:
            actual, _ = await played(executor, "c", past)
            assert [c.outcome for c in actual.cells] == ["repeated"] * 3 + ["failed", "repeated", "failed", "failed"]
            assert actual.cells[-1].reason == "not recorded: its environment variables"
            assert not (tmp_path / "c" / "ran").exists()
            session = await executor.session("c")
            assert (await session.execute_command("pwd")).stdout.strip().endswith("/c/sub")

    anyio.run(run)


@pytest.mark.parametrize(
    ("cell", "outcome", "problem"),
    [
        (RecordedCell("x = 1", status="aborted"), "skipped", "never ran"),
        (RecordedCell("x = 1", status="unfinished"), "unfinished", "had not ended"),
        pytest.param(
            RecordedCell("x = 1", status="error", interrupted="timeout"), "unfinished", "its timeout", marks=pytest.mark.nightly
        ),
        (RecordedCell("x = 1", status="error", interrupted="request"), "unfinished", "an interrupt"),
        (RecordedCell("x = 1", status="error", ended_kernel=True), "unfinished", "ended its kernel"),
    ],
)
def test_a_cell_that_did_not_end_by_itself_is_not_repeated(
    tmp_path: Path, cell: RecordedCell, outcome: str, problem: str
) -> None:
    async def run() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path) as executor:
            actual, names = await played(executor, "c", History((cell,)))
            assert (actual.cells[0].outcome, names) == (outcome, "[]")
            assert problem in (actual.cells[0].reason or "")

    anyio.run(run)


#: A past of which the slow cell is marked: what it did is counted in a file.
SLOW = (
    RecordedCell("import json\na = [1]", status="ok", seconds=0.1),
    RecordedCell("open('runs', 'w').write('ran')\nclass P:\n    pass\nb = P()\nb.n = sum(a)", status="ok", seconds=500.0),
    RecordedCell("b.n += 1\na.append(2)", status="ok", seconds=0.1),
    RecordedCell("import os\nc = os.rename('no', 'where')", status="ok", seconds=0.1),
    RecordedCell("d = len(a)", status="ok", seconds=0.1),
    RecordedCell("e = b.n + d", status="ok", seconds=0.1),
)


async def covered(executor: AsyncExecutor) -> History:
    """The past, with a snapshot after its fifth cell, as a session that went through it would have left it."""
    session = await executor.session("before")
    await session.execute("a = [1, 2]\nclass P:\n    pass\nb = P()\nb.n = 2\nc = None\nd = 2\nimport json, os")
    return History(SLOW, await session.snapshot(), covered=5)


def test_a_slow_cell_comes_back_from_a_snapshot_and_changes_count_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path) as executor:
            actual, names = await played(executor, "after", await covered(executor))
            assert [c.outcome for c in actual.cells] == ["repeated", "restored", "restored", "restored", "restored", "repeated"]
            assert names == "['P', 'a', 'b', 'c', 'd', 'e']"
            assert actual.ok, str(actual)
            session = await executor.session("after")
            assert (await session.execute("a, b.n, d, e, json.dumps(1)")).text == "([1, 2], 2, 2, 4, '1')"
            assert not (session.workspace / "runs").exists()
            assert "not repeated" in (actual.cells[1].reason or "")
            assert "copies" in str(actual)

    anyio.run(run)


@pytest.mark.parametrize("harm", [*at_night("missing"), "changed"])
def test_a_cell_whose_snapshot_cannot_be_loaded_is_run(tmp_path: Path, harm: str) -> None:
    async def run() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path) as executor:
            past = await covered(executor)
            assert past.snapshot is not None
            file = next(item.file for item in past.snapshot.variables if item.name == "b")
            path = Path(past.snapshot.directory) / file
            path.write_bytes(b"other") if harm == "changed" else path.unlink()
            actual, _ = await played(executor, "after", past)
            assert actual.cells[1].outcome == "repeated"
            assert "b could not be loaded" in (actual.cells[1].reason or "")
            session = await executor.session("after")
            assert (session.workspace / "runs").exists()
            assert any("b:" in note for note in actual.notes)

    anyio.run(run)


def test_a_snapshot_that_ends_the_kernel_ends_the_replay(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path, config={"checkpoints": "named"}) as executor:
            session = await executor.session("before")
            deadly = "import os\nclass D:\n    def __reduce__(self):\n        return os._exit, (3,)\na, d = 1, D()"
            await session.execute(deadly)
            past = History((RecordedCell("a = 1"), RecordedCell("b = a")), await session.snapshot(), covered=1)
            actual, names = await played(executor, "after", past)
            assert [cell.outcome for cell in actual.cells] == ["repeated", "not_reached"]
            assert (actual.state_lost, actual.missing, names) == (True, ("a", "b"), "[]")

    anyio.run(run)


def test_a_slow_cell_whose_variable_was_left_out_is_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncExecutor(isolation="local", workspace=tmp_path) as executor:
            session = await executor.session("before")
            await session.execute("held = [lambda: 1]\nx = 1")
            snapshot = await session.snapshot()
            cells = (RecordedCell("x = 1\nheld = [lambda: 1]", status="ok", seconds=500.0),)
            actual, names = await played(executor, "after", History(cells, snapshot, covered=1))
            assert [c.outcome for c in actual.cells] == ["repeated"]
            assert actual.names == ("held", "x")
            assert names == "['x']"

    anyio.run(run)
