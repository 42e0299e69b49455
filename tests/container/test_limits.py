"""Limits that change while a kernel lives: its state is kept, later kernels have them too, impossible ones are reported."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelexec import Executor, InvalidConfig, InvalidRequest, InvalidTimeout, LimitRefused, Session
from tests.conftest import KINDS
from tests.support.engine import needs_engine
from tests.support.low_memory import MIB
from tests.support.pace import BOUND, slow

pytestmark = needs_engine

BAD: list[dict[str, object]] = [{"memory_bytes": 1}, {"memory_bytes": "64"}, {"memory_bytes": True}, {"cpus": 0}, {"cpus": "2"}]


@pytest.fixture(scope="module")
def one_container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    config = {**KINDS["container"], "checkpoints": "named"}  # others would count as memory that the next test's cells use
    with Executor(isolation="container", workspace=tmp_path_factory.mktemp("workspaces"), config=config) as executor:
        yield executor.session("contained")


@pytest.fixture
def contained(one_container: Session) -> Session:
    """The session of a container, with the limits that it was configured with."""
    one_container.set_limits(memory_bytes=4096 * MIB, cpus=1.0, timeout=60.0)
    one_container.execute("x = None")
    return one_container


def test_the_state_is_kept_and_the_timeout_is_in_force(session: Session) -> None:
    session.execute("x = 1")
    seconds = slow(2)
    actual = session.set_limits(memory_bytes=512 * MIB, cpus=0.5, timeout=seconds)
    assert actual.timeout == seconds
    assert session.execute("x").text == "1"
    result = session.execute("import time\ntime.sleep(600)")
    assert (result.interrupted, result.state) == ("timeout", "kept")


def test_limits_not_in_force_are_reported_after_a_snapshot(session: Session) -> None:
    actual = session.set_limits(memory_bytes=512 * MIB)
    session.snapshot()
    assert session.execute("1").notes == actual.not_applied


def test_limits_not_in_force_are_reported_at_once_and_by_the_next_result(session: Session) -> None:
    actual = session.set_limits(memory_bytes=512 * MIB)
    following = session.execute("1")
    assert following.notes == actual.not_applied
    assert (actual.memory_bytes is None) == bool(actual.not_applied)
    assert session.execute("1").notes == ()


@pytest.mark.parametrize("wanted", BAD, ids=repr)
@pytest.mark.shared_session
def test_a_limit_that_no_container_could_have_is_refused(session: Session, wanted: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(wanted))):
        session.set_limits(**wanted)  # type: ignore[arg-type]


@pytest.mark.shared_session
def test_no_limit_at_all_is_refused(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="at least one limit"):
        session.set_limits()
    with pytest.raises(InvalidTimeout):
        session.set_limits(timeout=-1)


def test_a_living_container_and_its_successors_get_the_limits(contained: Session) -> None:
    epoch = contained.execute("x = 1").kernel_epoch
    for memory, cpus in ((2048 * MIB, 2.0), (256 * MIB, 0.5), (512 * MIB, 1.0)):
        assert contained.set_limits(memory_bytes=memory, cpus=cpus).not_applied == ()
        actual = contained.stats()
        assert (actual.memory_limit_bytes, actual.cpus, actual.kernel_epoch) == (memory, cpus, epoch)
    assert contained.execute("print(open('/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes').read())").stdout.split() == [
        str(512 * MIB)
    ]
    assert contained.execute("x").text == "1"
    contained.restart()
    actual = contained.stats()
    assert (actual.memory_limit_bytes, actual.cpus, actual.kernel_epoch) == (512 * MIB, 1.0, epoch + 1)


def test_two_changes_at_once_both_hold(contained: Session) -> None:
    with ThreadPoolExecutor() as pool:
        for change in [
            pool.submit(contained.set_limits, memory_bytes=512 * MIB),
            pool.submit(contained.set_limits, timeout=50.0),
        ]:
            change.result(BOUND)
    assert contained.stats().memory_limit_bytes == 512 * MIB
    contained.restart()
    assert contained.stats().memory_limit_bytes == 512 * MIB
    assert contained.set_limits(cpus=0.5).timeout == 50.0


def test_a_limit_below_what_is_used_is_refused_with_the_figures_and_nothing_changes(contained: Session) -> None:
    contained.execute("x = bytearray(b'x') * 200_000_000")
    before = contained.stats()
    with pytest.raises(LimitRefused, match=r"uses 2\d\d MiB, more than 128 MiB.* still 4 GiB"):
        contained.set_limits(memory_bytes=128 * MIB, cpus=3.0, timeout=1)
    after = contained.stats()
    assert (after.memory_limit_bytes, after.cpus) == (before.memory_limit_bytes, before.cpus)
    assert contained.execute("len(x)").text == "200000000"


def test_limits_refused_by_the_engine_change_nothing(contained: Session) -> None:
    contained.execute("x = 1")
    before = contained.stats()
    with pytest.raises(LimitRefused, match="stay as they are"):
        contained.set_limits(memory_bytes=512 * MIB, cpus=1000.0)
    after = contained.stats()
    assert (after.memory_limit_bytes, after.cpus) == (before.memory_limit_bytes, before.cpus)
    assert contained.execute("x").text == "1"


def test_a_running_cell_gets_more_memory(contained: Session) -> None:
    contained.set_limits(memory_bytes=256 * MIB)
    code = "import time\nwhile True:\n    limit = int(open('/sys/fs/cgroup/memory/memory.limit_in_bytes').read())\n"
    code += "    if limit > 300 * 2**20: break\n    time.sleep(0.05)\nlen(bytearray(b'x') * 500_000_000)"
    running = contained.execute(code, wait=0.2, timeout=600)
    contained.set_limits(memory_bytes=1024 * MIB)
    result = contained.wait_for(running.execution_id).result
    assert result is not None
    assert result.text == "500000000"


def test_a_profile_is_applied_and_the_state_is_kept(contained: Session) -> None:
    contained.set_limits("simple")
    epoch = contained.execute("x = 1").kernel_epoch
    actual = contained.set_limits("complex", cpus=1.5)
    assert (actual.memory_bytes, actual.cpus, actual.timeout) == (1024 * MIB, 1.5, 600.0)
    now = contained.stats()
    assert (now.memory_limit_bytes, now.cpus, now.kernel_epoch) == (1024 * MIB, 1.5, epoch)
    assert contained.execute("x").text == "1"


def test_the_patience_of_a_profile_is_in_force_everywhere(session: Session) -> None:
    assert session.set_limits("simple").timeout == 30.0


def test_a_profile_that_is_not_there_is_refused_with_the_nearest(session: Session) -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'simple'"):
        session.set_limits("simpel")
