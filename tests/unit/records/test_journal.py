"""The journal's file: whole lines at every moment, bounded, kept by one, and readable whatever became of its writer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kernelexec.cells import CodeCell, ShellCell, fingerprint, source_digest
from kernelexec.errors import InvalidCode, InvalidRequest, Refused
from kernelexec.events import (
    CellAborted,
    CellExecuted,
    CellRefused,
    CellStarted,
    DisplayUpdated,
    Event,
    KernelChanged,
    SessionClosed,
    SessionClosing,
    SessionOpened,
)
from kernelexec.records.journal import Journal, journals, path_of, read, rows
from kernelexec.records.journal import journal as journal_module
from kernelexec.records.journal.records import RESULT_BYTES, parts
from kernelexec.results import DisplayData, Error, ExecutionResult, Stream, Timing

MIB = 1024 * 1024
OPENED, CLOSING = SessionOpened("s", Path("/workspace")), SessionClosing("s")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".journals" / "s.jsonl"


@pytest.fixture
def keep(path: Path) -> Iterator[Callable[..., Journal]]:
    """What opens the journal; all that it opened is closed in the end."""
    opened: list[Journal] = []

    def open_one(at: Path = path, *, limit_bytes: int = MIB) -> Journal:
        opened.append(Journal(at, limit_bytes=limit_bytes))
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


def result_of(execution_id: str = "e1", **values: Any) -> ExecutionResult:
    return ExecutionResult(execution_id, "s", **{"status": "ok", "exit_code": 0, "state": "kept", **values})


def started(source: str = "x = 1", execution_id: str = "e1", request_id: str | None = None) -> CellStarted:
    return CellStarted("s", execution_id, CodeCell(source), 1, request_id)


def finished(result: ExecutionResult, request_id: str | None = None, source: str = "x = 1") -> CellExecuted:
    return CellExecuted("s", CodeCell(source), result, request_id)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Every line of a file, each of which is a JSON object and ends."""
    raw = path.read_bytes()
    assert raw == b"" or raw.endswith(b"\n")
    actual = [json.loads(line) for line in raw.decode().splitlines()]
    assert all(isinstance(answer, dict) for answer in actual)
    return actual


@contextmanager
def no_file_over(limit_bytes: int) -> Iterator[None]:
    """A disk on which files end there: what is over fails, in the middle of a write if it must."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_event_of_a_session_is_a_line_when_the_call_returns(keep: Callable[..., Journal], path: Path) -> None:
    journal, cell = keep(), ShellCell("%%bash\nls", "ls", persistent=True, work_dir="/w", stdin="in")
    outcome = result_of(
        "e2", status="error", exit_code=7, timing=Timing(run=0.25, cpu_seconds=0.1, peak_memory_bytes=5), files=("a.txt",)
    )
    events: list[Event] = [
        OPENED,
        KernelChanged("s", 1, "started"),
        CellRefused("s", "code", "", InvalidCode("code is empty")),
        started("print('é\u2028')"),
        finished(result_of(outputs=(Stream("stdout", "é\n"),))),
        CellStarted("s", "e2", cell, 1),
        CellExecuted("s", cell, outcome),
        CellAborted("s", CodeCell("y"), result_of("e3", status="aborted", notes=("The session was closed.",))),
        KernelChanged("s", 1, "died", "crashed"),
        CLOSING,
        SessionClosed("s"),
    ]
    for number, event in enumerate(events, 1):
        journal(event)
        assert len(lines_of(path)) == number
        assert journal.failure is None
    answer = lines_of(path)
    names = [
        "opened",
        "kernel",
        "refused",
        "started",
        "finished",
        "started",
        "finished",
        "aborted",
        "kernel",
        "closing",
        "closed",
    ]
    assert [item["event"] for item in answer] == names
    assert all(item["session"] == "s" and item["time"].endswith("+00:00") for item in answer)
    assert (answer[0]["owner_pid"], answer[0]["workspace"]) == (os.getpid(), "/workspace")
    assert (answer[2]["decision"], answer[2]["error"], answer[2]["why"]) == ("refused", "InvalidCode", "code is empty")
    assert (answer[3]["decision"], answer[3]["code"], answer[3]["kind"]) == ("allowed", "print('é\u2028')", "code")
    assert answer[3]["sha256"] == source_digest(CodeCell("print('é\u2028')"))
    assert (answer[4]["status"], answer[4]["text"], answer[4]["state"]) == ("ok", "é\n", "kept")
    assert (answer[5]["kind"], answer[5]["work_dir"], answer[5]["stdin"], answer[5]["lasts"]) == ("command", "/w", "in", True)
    assert (answer[6]["exit_code"], answer[6]["seconds"], answer[6]["cpu_seconds"]) == (7, 0.25, 0.1)
    assert (answer[6]["peak_memory_bytes"], answer[6]["files"]) == (5, ["a.txt"])
    assert answer[7]["why"] == "The session was closed."
    assert (answer[8]["change"], answer[8]["cause"]) == ("died", "crashed")


def test_events_without_a_record_write_nothing(keep: Callable[..., Journal], path: Path) -> None:
    keep()(DisplayUpdated("s", "d", {}, {}))
    assert path.read_bytes() == b""


def test_the_file_is_its_owners_alone(keep: Callable[..., Journal], path: Path) -> None:
    keep()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_full_disk_leaves_whole_lines_and_what_is_missing_is_counted(keep: Callable[..., Journal], path: Path) -> None:
    journal = keep()
    journal(OPENED)
    before = path.read_bytes()
    with no_file_over(len(before) + 20):
        for execution_id in ("e1", "e2"):
            journal(started(execution_id=execution_id))
            assert journal.failure == "File too large"
            assert path.read_bytes() == before
    journal(started(execution_id="e3"))
    assert journal.failure is None
    assert [answer["event"] for answer in lines_of(path)] == ["opened", "gap", "started"]
    assert lines_of(path)[1]["missed"] == 2


def test_a_directory_that_cannot_be_made_is_a_failure_and_not_an_error(tmp_path: Path, keep: Callable[..., Journal]) -> None:
    (tmp_path / "file").write_text("")
    journal = keep(tmp_path / "file" / "s.jsonl")
    assert journal.failure == "Not a directory"
    journal(started())
    assert journal.failure == "Not a directory"


def test_a_removed_journal_is_begun_again(keep: Callable[..., Journal], path: Path) -> None:
    journal = keep()
    journal(OPENED)
    path.unlink()
    journal(CLOSING)
    assert [answer["event"] for answer in lines_of(path)] == ["closing"]


def replace_by_link(directory: Path, target: Path) -> None:
    directory.rename(directory.with_name("moved"))
    target.mkdir(exist_ok=True)
    directory.symlink_to(target)


def test_a_link_in_the_place_of_the_directory_is_not_followed(keep: Callable[..., Journal], path: Path, tmp_path: Path) -> None:
    journal, target = keep(), tmp_path / "target"
    replace_by_link(path.parent, target)
    journal(OPENED)
    later = keep(path.with_name("later.jsonl"))
    later(OPENED)
    assert (journal.failure, later.failure) == ("Not a directory", "Not a directory")
    assert list(target.iterdir()) == []
    path.parent.unlink()
    journal(CLOSING)
    assert [answer["event"] for answer in lines_of(path)] == ["gap", "closing"]


def test_requests_are_read_from_the_directory_that_is_held(keep: Callable[..., Journal], path: Path, tmp_path: Path) -> None:
    first = keep()
    first(started(request_id="r"))
    first(finished(result_of(), "r"))
    first.close()
    journal, target = keep(), tmp_path / "target"
    replace_by_link(path.parent, target)
    recorded = (tmp_path / "moved" / path.name).read_bytes()
    (target / path.name).write_bytes(recorded.replace(b'"r"', b'"forged"'))
    assert journal.find_request("forged") is None
    assert (known := journal.find_request("r")) is not None
    assert known.result == result_of()


def test_the_journal_stays_within_its_bound_and_keeps_the_newest(keep: Callable[..., Journal], path: Path) -> None:
    journal, limit = keep(limit_bytes=40_000), 40_000
    for number in range(300):
        journal(started(f"# {number:05} " + "x" * 1000, f"e{number}"))
        assert sum(part.stat().st_size for part in parts(path)) <= limit
    kept = [answer["execution_id"] for answer in read(path)]
    assert kept == [f"e{number}" for number in range(300 - len(kept), 300)]
    assert len(kept) > 20
    assert 2 < len(parts(path)) <= 4
    assert journals(path.parent.parent) == {"s": path}
    assert all(lines_of(part) for part in parts(path))


def test_a_file_system_without_locks_has_the_same_parts(
    keep: Callable[..., Journal], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(_fd: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(journal_module, "lock", lock)
    journal, before = keep(limit_bytes=40_000), 0
    for number in range(60):
        journal(started(f"# {number:05} " + "x" * 1000, f"e{number}"))
        before = before or len(list(Path("/proc/self/fd").iterdir()))
    assert journal.failure is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    kept = [answer["execution_id"] for answer in read(path)]
    assert kept == [f"e{number}" for number in range(60 - len(kept), 60)]


def test_a_part_that_cannot_be_begun_leaves_no_name(
    keep: Callable[..., Journal], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = keep(limit_bytes=8000)
    journal(started("x" * 1000, "e0"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", Mock(side_effect=OSError(errno.EDQUOT, "Disk quota exceeded")))
        for number in range(1, 20):
            journal(started("x" * 1000, f"e{number}"))
    assert journal.failure == "Disk quota exceeded"
    assert parts(path) == [path]
    journal(started("y", "last"))
    assert [answer.get("execution_id") for answer in read(path)][-1] == "last"


def test_a_line_larger_than_a_part_is_written_all_the_same(keep: Callable[..., Journal], path: Path) -> None:
    journal = keep(limit_bytes=4000)
    journal(OPENED)
    journal(started("x" * 5000))
    assert [answer["event"] for answer in lines_of(path)] == ["started"]
    assert [answer["event"] for answer in read(path)] == ["opened", "started"]


@pytest.mark.parametrize("torn", [b'{"event":"sta', b"x" * 200_000, b'{"a":1}'])
def test_a_line_that_its_writer_was_killed_in_is_cut_off_and_counted(
    keep: Callable[..., Journal], path: Path, torn: bytes
) -> None:
    journal = keep()
    journal(OPENED)
    journal.close()
    with path.open("ab") as file:
        file.write(torn)
    keep()(CLOSING)
    assert [answer["event"] for answer in lines_of(path)] == ["opened", "gap", "closing"]


def test_a_file_of_one_torn_line_is_begun_again(keep: Callable[..., Journal], path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * 70_000)
    keep()(OPENED)
    assert [answer["event"] for answer in lines_of(path)] == ["gap", "opened"]


def test_a_second_keeper_has_a_journal_of_its_own_and_answers_for_no_request(keep: Callable[..., Journal], path: Path) -> None:
    first = keep()
    first(OPENED)
    second = keep()
    second(OPENED)
    assert (first.path, second.path) == (path, path.with_name("s@2.jsonl"))
    assert set(journals(path.parent.parent)) == {"s", "s@2"}
    with pytest.raises(Refused, match=r"another process has this session open and keeps its journal .*s\.jsonl"):
        second.find_request("r")
    first.close()
    assert keep().path == path


def test_a_locked_file_that_a_cell_puts_in_its_place_is_not_waited_for(
    keep: Callable[..., Journal], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = keep()
    journal(OPENED)
    forged = path.with_name("forged")
    forged.write_text(json.dumps({"event": "closed"}) + "\n")
    with forged.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        forged.replace(path)
        monkeypatch.setattr(time, "sleep", Mock(side_effect=AssertionError("it waits in the event loop")))
        journal(started())
    assert journal.path == path.with_name("s@2.jsonl")


def test_the_journal_of_one_name_is_never_taken_for_that_of_another(keep: Callable[..., Journal], path: Path) -> None:
    for name in ("s-2", "s.1", "s"):
        keep(path.with_name(f"{name}.jsonl"))(replace(OPENED, session=name))
    assert {name: next(read(actual))["session"] for name, actual in journals(path.parent.parent).items()} == {
        "s": "s",
        "s-2": "s-2",
        "s.1": "s.1",
    }


def test_an_owner_that_is_ending_is_waited_for(keep: Callable[..., Journal], path: Path) -> None:
    before = keep()
    before(OPENED)
    before(CLOSING)
    with ThreadPoolExecutor() as pool:
        next_one = pool.submit(keep)
        with pytest.raises(TimeoutError):
            next_one.result(0.2)
        before.close()
        assert next_one.result(10).path == path


def test_pipes_and_links_at_the_journals_path_are_left_alone(keep: Callable[..., Journal], path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    journal = keep()
    assert journal.path == path.with_name("s@2.jsonl")
    link = path.with_name("link.jsonl")
    link.symlink_to(path.parent.parent / "elsewhere")
    assert keep(link).failure is not None
    assert not (path.parent.parent / "elsewhere").exists()


def test_a_request_is_known_by_its_first_outcome_whole_also_to_the_next_owner(keep: Callable[..., Journal]) -> None:
    result = result_of(outputs=(Stream("stdout", "é\n"), DisplayData({"image/png": "iVBORw0KGgo="})), files=("a",))
    first = keep()
    first(started(request_id='r "1"'))
    assert (known := first.find_request('r "1"')) is not None
    assert (known.execution_id, known.result) == ("e1", None)
    first(finished(result, 'r "1"'))
    first.close()
    known = keep().find_request('r "1"')
    assert known is not None
    assert known.result == result
    assert known.fingerprint == fingerprint(CodeCell("x = 1"))
    assert first.find_request("r") is None


def test_a_result_over_the_bound_keeps_its_verdict_its_text_and_its_error(keep: Callable[..., Journal], path: Path) -> None:
    error = Error("ValueError", "v" * MIB, ("t" * MIB,))
    outputs = (Stream("stdout", "o" * MIB), Stream("stderr", "e" * MIB), DisplayData({"image/png": "A" * MIB}), error)
    journal = keep(limit_bytes=64 * MIB)
    journal(started(request_id="r"))
    journal(finished(result_of(status="error", exit_code=1, outputs=outputs), "r"))
    assert path.stat().st_size < RESULT_BYTES + 20_000
    known = journal.find_request("r")
    assert known is not None
    assert known.result is not None
    assert (known.result.status, known.result.exit_code, known.result.truncated) == ("error", 1, True)
    assert known.result.stdout.startswith("ooo")
    assert known.result.stderr.endswith("eee")
    assert known.result.error is not None
    assert known.result.error.ename == "ValueError"
    assert "journal" in known.result.notes[-1]


def test_a_request_that_could_not_be_written_down_is_known_all_the_same(keep: Callable[..., Journal], path: Path) -> None:
    journal = keep()
    journal(OPENED)
    with no_file_over(path.stat().st_size):
        journal(started(request_id="r"))
    known = journal.find_request("r")
    assert known is not None
    assert (known.execution_id, known.result) == ("e1", None)


def test_lines_that_are_none_are_passed_over(keep: Callable[..., Journal], path: Path) -> None:
    keep()(OPENED)
    with path.open("ab") as file:
        file.write(b"\xff\n[1]\n" + b"[" * 100_000 + b'\n{"event":"closed","session":"s","time":"t"}\n')
    assert [answer["event"] for answer in read(path)] == ["opened", "closed"]


@pytest.mark.parametrize("deep", [b'{"event":' + b"[" * 30_000, b'{"event":' * 5_000, b"[" * 30_000])
def test_a_line_that_is_nested_too_deep_keeps_no_session_from_its_journal(
    keep: Callable[..., Journal], path: Path, deep: bytes
) -> None:
    ended = b'{"event":"started"}\n{"event":"closing","names":["x"]}\n'
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(ended + deep + b"\n")
    journal = keep()
    assert (journal.failure, journal.owner_was_closed, journal.owner_names) == (None, True, ("x",))


@pytest.mark.parametrize("half", [rb"\ud800", rb"\uDfFf", b"\xed\xa0\x80"])
def test_half_a_surrogate_pair_in_a_journal_is_escaped(keep: Callable[..., Journal], path: Path, half: bytes) -> None:
    fields = b'"execution_id":"e1","request_id":"r","fingerprint":"f","code":"' + half + b'","kind":"code"'
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"event":"started",' + fields + b'}\n{"event":"closing","names":["' + half + b'"]}\n')
    assert [name.encode()[:3] for name in keep().owner_names] == [b"\\ud"]
    assert next(read(path))["code"].encode()[:3] == b"\\ud"


def test_a_whole_surrogate_pair_in_a_journal_is_a_character(keep: Callable[..., Journal], path: Path) -> None:
    keep()(OPENED)
    with path.open("ab") as file:
        file.write(rb'{"event":"started","code":"\ud83d\ude00"}' + b"\n")
    assert [answer.get("code") for answer in read(path)] == [None, "\N{GRINNING FACE}"]


def test_a_cell_is_one_row_with_its_outcome(keep: Callable[..., Journal], path: Path) -> None:
    journal = keep()
    journal(OPENED)
    journal(started("1/0"))
    failed = (Error("ZeroDivisionError", "division by zero"),)
    journal(finished(result_of(status="error", exit_code=1, outputs=failed, timing=Timing(run=0.5)), source="1/0"))
    journal(started("y", "e2"))
    journal(KernelChanged("s", 1, "died", "killed"))
    opened, first, second, died = rows(path)
    assert (opened.event, died.event, died.reason, died.cause) == ("opened", "kernel", "died", "killed")
    assert (first.event, first.code, first.status, first.exit_code, first.seconds) == ("cell", "1/0", "error", 1, 0.5)
    assert first.reason == "ZeroDivisionError: division by zero"
    assert (second.event, second.code, second.status) == ("started", "y", None)


def test_an_unknown_journal_names_the_nearest(keep: Callable[..., Journal], path: Path) -> None:
    keep(path.with_name("analysis.jsonl"))
    with pytest.raises(InvalidRequest, match=r"'analisys'.*did you mean 'analysis'"):
        path_of(path.parent.parent, "analisys")


def test_a_request_that_was_never_sent_is_new_to_the_next_owner(keep: Callable[..., Journal]) -> None:
    first = keep()
    first(started(request_id="r"))
    first(CellAborted("s", CodeCell("x = 1"), result_of(status="aborted", exit_code=-1), "r"))
    assert first.find_request("r") is None
    first.close()
    assert keep().find_request("r") is None
