"""Commands as another user than the kernel's: real accounts and permissions of a container, streams, timeout, end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import pytest

from kernelexec import Session
from tests.conftest import KINDS, RELAYED, executor_of
from tests.support.engine import needs_engine
from tests.support.pace import slow, until

pytestmark = [needs_engine, pytest.mark.nightly]

UID = 4321
CONTAINER = {**dict(KINDS["container"]["container"]), "user": f"{UID}:{UID}"}  # type: ignore[call-overload]
RUNS = "pgrep -x sleep | wc -l"


@pytest.fixture(scope="module", params=["container", *RELAYED])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with executor_of(request.param, tmp_path_factory.mktemp("w"), container=CONTAINER) as executor:
        yield executor.session("users")


def living(session: Session, mark: str) -> int:
    """The number of processes whose command line has a mark, as root sees them."""
    count = f"for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done | grep -c '[{mark[0]}]{mark[1:]}'"
    return int(session.execute_command(count, user="root").stdout)


@pytest.mark.parametrize(("user", "ids"), [("root", "0 0"), ("nobody", "65534 65534"), (0, "0 0"), ("1234", "1234 0")])
def test_the_account_is_the_images(session: Session, user: str | int, ids: str) -> None:
    result = session.execute_command("echo $(id -u) $(id -g); pwd", user=user)
    assert result.stdout == f"{ids}\n{session.workspace_inside}\n"


def test_the_kernels_own_account_keeps_the_shells_state(session: Session) -> None:
    session.execute_command("cd /tmp; export A=1", user=str(UID))
    assert session.execute_command("pwd; echo $A").stdout == "/tmp\n1\n"
    assert session.execute_command("pwd; echo $A $B $HOME; cd /usr", user="root", env={"B": "2"}).stdout == (
        f"{session.workspace_inside}\n2 /root\n"
    )
    assert session.execute_command("pwd; cd").stdout == "/tmp\n"


def test_permissions_are_real(session: Session) -> None:
    session.execute_command("umask 077; echo mine > private").raise_for_error()
    assert session.execute_command("cat private", user="nobody").exit_code == 1
    assert session.execute_command("umask 077; echo x > /tmp/roots", user="root").exit_code == 0
    denied = session.execute_command("cat /tmp/roots")
    assert (denied.exit_code, "Permission denied" in denied.stderr) == (1, True)


def test_an_unknown_account_is_the_engines_error(session: Session) -> None:
    result = session.execute_command("id", user="no-such-account")
    assert (result.exit_code, result.state) == (126, "kept")
    assert "unable to find user no-such-account" in result.text


def test_streams_are_apart_and_bytes_unchanged(session: Session) -> None:
    content, received = os.urandom(50_000_000), bytearray()
    result = session.execute_command("tee /dev/stderr | sha256sum; exit 3", user="nobody", stdin="é\n" * 3)
    assert (result.stdout[:64], result.stderr, result.exit_code) == (
        hashlib.sha256("é\né\né\n".encode()).hexdigest(),
        "é\né\né\n",
        3,
    )
    assert session.execute_command("cat", user="nobody", stdin=content, on_stdout=received.extend).exit_code == 0
    assert received == content


def test_quick_output_is_never_lost(session: Session) -> None:
    assert {session.execute_command("echo out", user="nobody").stdout for _ in range(30)} == {"out\n"}


@pytest.mark.parametrize("command", ["sleep 6011", "sleep 6011 & sleep 6011", "trap '' INT TERM; (sleep 6011); sleep 6011"])
def test_a_timeout_ends_all_processes(session: Session, command: str) -> None:
    result = session.execute_command(f"echo begun; {command}; true", user="nobody", timeout=slow(3))
    assert (result.stdout, result.exit_code, result.interrupted, result.state) == ("begun\n", 124, "timeout", "kept")
    until(lambda: living(session, "6011") == 0)


def test_an_interrupt_ends_all_processes(session: Session) -> None:
    running = session.execute_command("echo begun; sleep 6012", user="root", wait=0.001, timeout=600)
    until(lambda: session.read_output(running.execution_id).text)
    result = session.interrupt(running.execution_id)
    assert result is not None
    assert (result.interrupted, result.state) == ("request", "kept")
    until(lambda: living(session, "6012") == 0)


def test_a_kernel_that_dies_takes_the_process_along(session: Session) -> None:
    running = session.execute_command("echo begun; sleep 6013", user="root", wait=0.001, timeout=600)
    until(lambda: session.read_output(running.execution_id).text)
    session.restart()
    ended = session.wait_for(running.execution_id).result
    assert ended is not None
    assert ended.state == "lost"
    until(lambda: living(session, "6013") == 0)
