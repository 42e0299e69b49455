"""Too much output: memory stays flat, cuts are reported, and the rest can be read."""

from __future__ import annotations

import pytest

from kernelexec import Executor, Session
from tests.support.pace import BOUND, slow
from tests.support.peak_memory import forget_peak, peak_bytes

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ()

MIB = 1024 * 1024
GROWTH = 50 * MIB


def test_yes_for_two_seconds(session: Session) -> None:
    before = forget_peak()
    result = session.execute_command("yes", timeout=slow(2))
    assert peak_bytes() - before < GROWTH
    assert (result.interrupted, result.exit_code, result.state) == ("timeout", 124, "kept")
    assert result.truncated
    assert result.total_bytes > 10 * MIB
    assert len(result.stdout) < 1.1 * MIB
    assert "bytes of stdout cut: read_output has them" in result.stdout
    assert result.output_ref == result.execution_id
    page = session.read_output(result.execution_id, offset=2 * MIB, limit=10)
    assert (page.text, page.offset, page.next_offset) == ("y\n" * 5, 2 * MIB, 2 * MIB + 10)
    assert 0 <= result.total_bytes - page.total_bytes < 10_000  # the traceback is no stream


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_gigabyte_of_prints(session: Session) -> None:
    before = forget_peak()
    code = "for n in range(1000): print(f'{n:05d}' + 'x' * 999_994)"
    result = session.execute(code, timeout=600)
    assert peak_bytes() - before < GROWTH
    assert (result.status, result.state, result.truncated) == ("ok", "kept", True)
    assert result.total_bytes == 1000 * 1000 * 1000
    assert result.stdout.startswith("00000xxx")
    assert result.stdout.endswith("xxx\n")
    page = session.read_output(result.execution_id, offset=100 * 1_000_000, limit=10)
    assert page.text == "00100xxxxx"
    assert page.stored_bytes == 256 * MIB  # the quota
    actual = session.read_output(result.execution_id, grep="^00200")
    assert actual.text.startswith("00200")
    last = session.read_output(result.execution_id, offset=256 * MIB - 10, limit=100)
    assert (len(last.text), last.next_offset) == (10, None)


@pytest.mark.nightly
def test_the_kernel_keeps_nothing_of_what_it_printed_or_showed(session: Session) -> None:
    reading = "int(open('/proc/self/statm').read().split()[1]) * 4096"
    session.execute("from IPython.display import display, HTML\ntext = 'x' * 10_000")
    before = int(session.execute(reading).text)
    session.execute("for n in range(10_000): print(f'{n}' + text)", timeout=BOUND)
    session.execute("for n in range(2000): display(HTML(f'{n}' + text * 5))", timeout=BOUND)
    assert int(session.execute(reading).text) - before < GROWTH


def test_pages_give_back_exactly_what_was_printed(session: Session) -> None:
    code = "text = ''.join(f'{n} \\u65e5\\u672c \\U0001f389\\n' for n in range(200_000))\nprint(text, end='')"
    result = session.execute(code, timeout=BOUND)
    assert result.truncated
    whole = "".join(f"{n} \u65e5\u672c \U0001f389\n" for n in range(200_000))
    pages = [session.read_output(result.execution_id, limit=100_003)]
    while (offset := pages[-1].next_offset) is not None:
        pages.append(session.read_output(result.execution_id, offset=offset, limit=100_003))
        assert pages[-1].offset == offset
    assert "".join(page.text for page in pages) == whole


def test_ten_megabytes_come_whole_where_the_budget_allows(executor: Executor, session: Session) -> None:
    result = session.execute("print('x' * 10_000_000)")
    assert (result.status, result.state) == ("ok", "kept")
    assert result.stdout.count("x") > MIB // 2
    assert result.total_bytes == 10_000_001
    assert session.read_output(result.execution_id, offset=9_999_990).text == "x" * 10 + "\n"


def test_a_progress_bar_is_one_line(session: Session) -> None:
    code = "import sys\nfor n in range(10_000):\n    sys.stderr.write(f'\\r{n}/10000')\n    sys.stderr.flush()"
    result = session.execute(code)
    assert (result.stderr, result.truncated) == ("9999/10000", False)


def test_a_waiting_reader_gets_pieces_and_learns_what_it_missed(session: Session) -> None:
    running = session.execute("for n in range(200): print(f'{n:06d}' + 'x' * 99_993)\nprint('end')", wait=0.001)
    progress = session.wait_for(running.execution_id, wait=BOUND)
    assert progress.result is not None
    assert len(progress.text.encode()) + progress.missed_bytes == 200 * 100_000 + 4
    assert progress.text.endswith("end\n")
    assert session.wait_for(running.execution_id, cursor=progress.cursor).text == ""
