"""What one command has of its own: variables, bytes for its input, bytes of its output."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from kernelexec import InvalidRequest, Session
from tests.support.night import at_night
from tests.support.pace import until

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()


async def write_later(content: bytes) -> None:
    """A function that cannot take bytes: nothing awaits it."""


SIZE = 10 * 1000 * 1000


@pytest.mark.shared_session
def test_variables_are_those_of_one_command(session: Session) -> None:
    result = session.execute_command('echo "$A"; export A=changed B=kept', env={"A": "x '\"\né"})
    assert result.stdout == "x '\"\né\n"
    assert session.execute_command("echo [$A] [$B]").stdout == "[] [kept]\n"
    assert session.execute_command("echo $B; unset B", env={"B": "mine"}).stdout == "mine\n"
    assert session.execute_command("echo $B").stdout == "kept\n"


@pytest.mark.parametrize("stdin", [b"", b"\0\xff\n", bytes(range(256)) * 1000, bytearray(b"a"), memoryview(b"b")], ids=len)
@pytest.mark.shared_session
def test_bytes_arrive_unchanged(session: Session, stdin: Any) -> None:
    result = session.execute_command("sha256sum | cut -c1-64", stdin=stdin)
    assert result.stdout.strip() == hashlib.sha256(stdin).hexdigest()


@pytest.mark.parametrize("size", [SIZE, *at_night(5 * SIZE)])
@pytest.mark.shared_session
def test_many_megabytes_go_through_a_command(session: Session, size: int) -> None:
    content, received = os.urandom(size), bytearray()
    result = session.execute_command("cat; echo done >&2; exit 5", stdin=content, on_stdout=received.extend, timeout=120)
    assert (result.stdout, result.stderr, result.exit_code, result.state) == ("", "done\n", 5, "kept")
    assert received == content


@pytest.mark.shared_session
def test_a_command_need_not_read_its_input(session: Session) -> None:
    result = session.execute_command("head -c 3; exec <&-; echo; echo end", stdin=b"abc" * SIZE)
    assert (result.stdout, result.exit_code) == ("abc\nend\n", 0)


def test_an_exception_of_the_function_closes_the_output(session: Session) -> None:
    def refuse(_content: bytes) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        session.execute_command("yes", on_stdout=refuse)
    ended = session.wait_for(session.executions()[-1]).result
    assert ended is not None
    assert (ended.exit_code, ended.state) == (141, "kept")  # SIGPIPE


def test_a_command_that_waits_for_its_reader_ends_at_its_timeout(session: Session) -> None:
    result = session.execute_command("cat > /dev/null; sleep 600", stdin=b"x" * SIZE, timeout=1)
    assert (result.exit_code, result.interrupted, result.state) == (124, "timeout", "kept")
    assert session.execute_command("cat", stdin=b"next").stdout == "next"


def test_output_of_a_child_that_stays_ends_with_the_command(session: Session) -> None:
    received = bytearray()
    stays = "(until [ -e go ]; do sleep 0.01; done; touch gone; exec yes) & echo first"
    result = session.execute_command(stays, on_stdout=received.extend)
    assert (bytes(received), result.exit_code) == (b"first\n", 0)
    (session.workspace / "go").touch()
    until((session.workspace / "gone").exists)
    assert session.execute_command("echo second").stdout == "second\n"


INVALID: dict[str, dict[str, Any]] = {
    "a list": {"env": ["A=1"]},
    "a name with =": {"env": {"A=B": "1"}},
    "a number": {"env": {"A": 1}},
    "a NUL": {"env": {"A": "\0"}},
    "no account": {"user": ""},
    "an option": {"user": "--privileged"},
    "a lone surrogate": {"env": {"A": "\udc80"}},
    "a coroutine function": {"on_stdout": write_later},
}


@pytest.mark.parametrize("options", INVALID.values(), ids=INVALID)
@pytest.mark.shared_session
def test_invalid_options_are_refused_before_anything_runs(session: Session, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        session.execute_command("touch ran", **options)
    assert not (session.workspace / "ran").exists()


def test_a_journal_has_names_of_variables_and_no_values(session: Session) -> None:
    session.execute_command("true", env={"TOKEN": "tok" + "en-value"}, stdin=b"binary-" + b"input")
    records = [path.read_text() for path in (session.notebook, session.journal) if isinstance(path, Path) and path.exists()]
    assert any("TOKEN" in text for text in records)
    assert not any(value in text for text in records for value in ("token-value", "binary-input"))
