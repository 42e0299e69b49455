"""A session's log: whole lines that no text can forge, within bounds, in a file that may be moved, full or shared."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from kernelexec.cells import CodeCell, make_command_cell
from kernelexec.errors import InvalidConfig, InvalidRequest
from kernelexec.events import (
    CellAborted,
    CellExecuted,
    CellRefused,
    CellStarted,
    Event,
    KernelChanged,
    KernelContainer,
    LateOutputReported,
    OutputReceived,
    SessionAdopted,
    SessionClosed,
    SessionOpened,
)
from kernelexec.records.log import ERROR_BYTES, OUTPUT_BYTES, ContainerLog, check
from kernelexec.results import DisplayData, Error, ExecutionResult, Stream

ID = "0123456789abcdef0123456789abcdef"
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \d+ "
CELL = CodeCell("print('hi')")
HOSTILE = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2K\r", "\x1b]0;title\x07", "\x00"]


@pytest.fixture
def log(tmp_path: Path) -> ContainerLog:
    return ContainerLog(tmp_path / "logs", "a", tmp_path / "ws")


def lines(log: ContainerLog, *events: Event) -> list[str]:
    """What is in the file after the events, without times and processes."""
    for event in events:
        log(event)
    actual = log.path.read_text().split("\n")
    assert actual.pop() == ""
    assert all(re.match(STAMP, line) for line in actual), actual
    return [re.sub(f"^{STAMP}", "", line) for line in actual]


def printed(text: str, name: str = "stdout") -> OutputReceived:
    return OutputReceived("a", ID, Stream("stderr" if name == "stderr" else "stdout", text))


def started(cell: CodeCell = CELL) -> CellStarted:
    return CellStarted("a", ID, cell, 1)


def ended(**more: object) -> CellExecuted:
    return CellExecuted("a", CELL, ExecutionResult(ID, "a", "ok", exit_code=0, state="kept", **more))  # type: ignore[arg-type]


def test_a_cell_its_output_and_its_end_are_there(log: ContainerLog) -> None:
    assert lines(log, started(), printed("hi\n"), printed("oh\n", "stderr"), ended(notes=("One note.",))) == [
        f"cell 01234567 started: python, kernel 1, execution {ID}",
        "cell 01234567 in | print('hi')",
        "cell 01234567 out | hi",
        "cell 01234567 err | oh",
        "cell 01234567 ended: ok, exit code 0, 0.000 s, state kept",
        "cell 01234567 note | One note.",
    ]


def test_a_command_says_where_it_runs(log: ContainerLog) -> None:
    cell = make_command_cell("make", work_dir="/ws/src", stdin=None, limit_bytes=100)
    actual = lines(log, CellStarted("a", ID, cell, 1))
    assert actual[0].startswith("cell 01234567 started: command in /ws/src, kernel 1")
    assert actual[-1] == "cell 01234567 in | make"


def test_a_line_that_grows_goes_on(log: ContainerLog) -> None:
    pieces = [
        printed("a"),
        printed("b"),
        printed("warning\n", "stderr"),
        printed("c\nd\n"),
        printed("e"),
        printed("\n"),
        printed("f"),
    ]
    assert [line.removeprefix("cell 01234567 ") for line in lines(log, started(), *pieces)[2:]] == [
        "out | a", "out + b", "err | warning", "out + c", "out | d", "out | e", "out | f"
    ]  # fmt: skip


def test_displays_and_errors_are_text(log: ContainerLog) -> None:
    picture = OutputReceived("a", ID, DisplayData({"image/png": "AAAA" * 9999}, {}))
    error = OutputReceived("a", ID, Error("ValueError", "no", ("\x1b[31mTraceback\x1b[0m", "ValueError: no")))
    actual = lines(log, started(), picture, error)[2:]
    assert actual == ["cell 01234567 out | <image/png>", "cell 01234567 err | Traceback", "cell 01234567 err | ValueError: no"]


@pytest.mark.parametrize("end", HOSTILE, ids=ascii)
def test_no_text_of_a_cell_forges_a_line(log: ContainerLog, end: str) -> None:
    forged = "2026-01-01T00:00:00.000Z 1 session closed"
    text = f"x{end}{forged}{end}"
    result = ExecutionResult(ID, "a", "aborted", notes=(text,))
    error = InvalidRequest(text)
    events = (
        started(CodeCell(text)), printed(text), printed(text, "stderr"),
        OutputReceived("a", ID, DisplayData({"text/plain": text}, {})),
        ended(notes=(text,)), printed(text), CellRefused("a", "code", text, error), CellAborted("a", CodeCell(text), result),
        KernelChanged("a", 1, "failed", text),
        KernelChanged("a", 1, "started", container=KernelContainer(text, text, text, text, ())),
        SessionOpened("a", Path(text.replace("\0", ""))),
    )  # fmt: skip
    actual = lines(log, *events)
    assert all(line.isprintable() for line in actual)
    assert not any(line.startswith(("2026", "session closed")) for line in actual)


def test_a_lone_surrogate_can_be_written(log: ContainerLog) -> None:
    assert lines(log, started(), printed("\ud800\n"))[-1] == r"cell 01234567 out | \ud800"


def test_a_kernel_says_where_it_runs(log: ContainerLog) -> None:
    where = KernelContainer("k-a", "0123456789ab", "image", "none", (("/ws", "/ws", False), ("/data", "/d", True)))
    actual = lines(
        log,
        KernelChanged("a", 1, "started", container=where),
        KernelChanged("a", 1, "died", "oom"),
        KernelChanged("a", 2, "started", language="bash"),
        KernelChanged("a", 3, "failed", "no image\nat all"),
    )
    assert actual == [
        "kernel 1 started: container k-a (0123456789ab), image image, network none, mounts /ws -> /ws (rw), /data -> /d (ro)",
        "kernel 1 died: oom",
        "kernel 2 (bash) started in place of the one before: on this machine",
        "kernel 3 did not start",
        "kernel 3 note | no image",
        "kernel 3 note | at all",
    ]


def test_output_over_the_bound_is_left_out_but_for_errors(log: ContainerLog) -> None:
    log(started())
    for number in range(20_000):
        log(printed(f"line {number}\n"))
    error = OutputReceived("a", ID, Error("ValueError", "no", ("Traceback", "ValueError: no")))
    actual = lines(log, error, ended())
    assert actual[2].endswith("out | line 0")
    assert actual[-4:-1] == [
        "cell 01234567 left out: further output",
        "cell 01234567 err | Traceback",
        "cell 01234567 err | ValueError: no",
    ]
    assert OUTPUT_BYTES / 2 < log.path.stat().st_size < 3 * OUTPUT_BYTES


UNEVEN = "\n" * 300_000 + "x" * 5_000_000


@pytest.mark.parametrize(
    "text", ["x" * 5_000_000, "\n" * 5_000_000, "\x00" * 5_000_000, UNEVEN], ids=lambda text: ascii(text[:1]) + str(len(text))
)
def test_one_piece_over_the_bound_is_cut(log: ContainerLog, text: str) -> None:
    assert lines(log, started(), printed(text), ended())[-2].endswith("left out: further output")
    assert log.path.stat().st_size < 6 * OUTPUT_BYTES


def test_errors_over_the_bound_have_a_bound_too(log: ContainerLog) -> None:
    error = OutputReceived("a", ID, Error("ValueError", "no", ("Traceback " + "x" * 3000,)))
    lines(log, started(), printed("no end", "stderr"), printed("x" * OUTPUT_BYTES), *[error] * 1000, ended())
    assert log.path.stat().st_size < OUTPUT_BYTES + 2 * ERROR_BYTES
    assert "err + Traceback" not in log.path.read_text()


def test_output_that_fills_the_bound_is_all_there(log: ContainerLog) -> None:
    assert "left out" not in "\n".join(lines(log, started(), printed("x" * (OUTPUT_BYTES - 48)), ended()))


def test_late_output_is_bounded_until_the_next_cell(log: ContainerLog) -> None:
    actual = lines(log, started(), ended(), *(printed("late" * 1000) for _ in range(100)))
    assert actual[-1] == "cell 01234567 left out: further output of ended cells, up to the next cell"
    assert log.path.stat().st_size < 2 * OUTPUT_BYTES
    assert lines(log, started(), ended(), printed("again"))[-1] == "cell 01234567 late | again"


def test_late_output_that_is_reported_again_for_notebooks_adds_no_line(log: ContainerLog) -> None:
    before = lines(log, started(), ended(), printed("late\n"))
    assert lines(log, LateOutputReported("a", ID, (Stream("stdout", "late\n"),))) == before


def test_output_of_an_aborted_cell_is_logged_as_late(log: ContainerLog) -> None:
    refused = CellAborted("a", CELL, ExecutionResult(ID, "a", "aborted", notes=("The disk is full.",)))
    assert lines(log, started(), refused, printed("x"))[-1] == "cell 01234567 late | x"


def test_a_cell_that_is_taken_over_has_its_output_as_any_other(log: ContainerLog) -> None:
    adopted = SessionAdopted("a", Path("/ws"), 1, execution_id=ID)
    actual = lines(log, adopted, printed("line 0\n"), printed("line 1\n"), ended(), printed("afterwards"))
    assert actual[:3] == [
        "session adopted from an owner that died: kernel 1 lives, on this machine",
        f"cell 01234567 goes on: its output so far comes again, execution {ID}",
        "cell 01234567 out | line 0",
    ]
    assert actual[-3].endswith("out | line 1")
    assert actual[-1] == "cell 01234567 late | afterwards"


def test_a_session_that_is_taken_over_without_a_cell_says_only_that(log: ContainerLog) -> None:
    assert len(lines(log, SessionAdopted("a", Path("/ws"), 1))) == 1


def test_a_long_source_is_cut_in_the_middle(log: ContainerLog) -> None:
    actual = lines(log, started(CodeCell("# first\n" + "x = 1\n" * 100_000 + "# last")))
    assert actual[1] == "cell 01234567 in | # first"
    assert actual[-1] == "cell 01234567 in | # last"
    assert any(re.fullmatch(r"cell 01234567 left out: \d+ bytes", line) for line in actual)


def test_the_file_and_its_directories_are_for_their_user_alone(log: ContainerLog, tmp_path: Path) -> None:
    assert log.path == tmp_path / "logs" / "a" / "docker_container.log"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (log.path, log.path.parent, log.path.parent.parent)] == [
        0o600,
        0o700,
        0o700,
    ]


def test_a_log_is_added_to(tmp_path: Path) -> None:
    for _ in range(2):
        log = ContainerLog(tmp_path / "logs", "a", tmp_path / "ws")
        lines(log, SessionOpened("a", tmp_path), SessionClosed("a"))
    assert [line.split(":")[0] for line in lines(log)] == ["session opened", "session closed"] * 2


def test_a_full_log_is_put_aside(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path, "a", tmp_path / "ws", limit_bytes=1000)
    for number in range(100):
        log(SessionOpened("a", Path(f"/{number}")))
    aside = log.path.with_name("docker_container.log.1")
    assert sorted(path.name for path in log.path.parent.iterdir()) == [log.path.name, aside.name]
    assert all(0 < path.stat().st_size <= 1000 for path in (log.path, aside))
    assert lines(log)[-1] == "session opened: workspace /99"


def test_a_log_that_is_moved_or_removed_is_begun_again(log: ContainerLog) -> None:
    lines(log, SessionOpened("a", Path("/1")))
    log.path.rename(log.path.with_name("moved"))
    assert lines(log, SessionOpened("a", Path("/2"))) == ["session opened: workspace /2"]
    log.path.unlink()
    log.path.with_name("moved").unlink()
    log.path.parent.rmdir()
    assert lines(log, SessionOpened("a", Path("/3"))) == ["session opened: workspace /3"]


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    logs = [ContainerLog(tmp_path, "a", tmp_path / "ws", limit_bytes=200_000) for _ in range(4)]

    def write(log: ContainerLog, number: int) -> None:
        for _ in range(500):
            log(SessionOpened("a", Path("/" + str(number) * 300)))

    threads = [threading.Thread(target=write, args=(log, number)) for number, log in enumerate(logs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path in (logs[0].path, logs[0].path.with_name("docker_container.log.1")):
        content = path.read_text().splitlines()
        assert content
        assert all(re.fullmatch(STAMP + r"session opened: workspace /(\d)\1{299}", line) for line in content)


def test_a_log_that_cannot_be_written_is_reported_once(
    log: ContainerLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_fd: int, _content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "kernelexec"):
        patch.setattr(os, "write", full)
        for _ in range(3):
            log(started())
    assert [(record.message, record.__dict__["reason"]) for record in caplog.records] == [
        ("kernelexec.log_not_written", "No space left on device")
    ]
    assert lines(log, SessionClosed("a")) == ["left out: 3 events, which could not be written", "session closed"]


def test_a_line_that_the_disk_cut_does_not_spoil_the_next(log: ContainerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, content: write(fd, content[:40]))
        log(SessionOpened("a", Path("/cut")))
    assert lines(log, SessionClosed("a"))[1:] == ["left out: 1 events, which could not be written", "session closed"]


def unfit_directory(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.mkdir()


def unfit_link(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/null")


def unfit_pipe(path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)


def unfit_parent(path: Path) -> None:
    path.parent.parent.mkdir(parents=True)
    path.parent.touch()


@pytest.mark.parametrize("make", [unfit_directory, unfit_link, unfit_pipe, unfit_parent])
def test_unfit_paths_of_a_log_are_refused(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "logs" / "a" / "docker_container.log")
    with pytest.raises(InvalidConfig, match="cannot be a log"):
        ContainerLog(tmp_path / "logs", "a", tmp_path / "ws")


def test_a_log_in_the_workspace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "ws")
    for log_dir in (tmp_path / "ws" / "logs", tmp_path / "link", tmp_path):
        with pytest.raises(InvalidConfig, match="lies in the workspace"):
            ContainerLog(log_dir, "a", tmp_path / ("ws" if log_dir != tmp_path else "a"))


def test_a_file_in_the_place_of_the_directory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for log_dir in (tmp_path / "file", tmp_path / "file" / "logs"):
        with pytest.raises(InvalidConfig, match="no directory"):
            check(log_dir, tmp_path / "ws")
    check(tmp_path / "new" / "logs", tmp_path / "ws")


def test_a_directory_where_sessions_work_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "ws")
    for log_dir in (tmp_path / "ws", tmp_path / "ws" / "b", tmp_path / "link" / "logs", tmp_path / "logs" / ".." / "ws"):
        with pytest.raises(InvalidConfig, match=f"where sessions work.*outside of it, such as {tmp_path}/logs"):
            check(log_dir, tmp_path / "ws")
    for log_dir in (tmp_path, tmp_path / "logs", tmp_path / "ws-logs"):
        check(log_dir, tmp_path / "ws")
