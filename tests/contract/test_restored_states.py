"""What ends a kernel costs, by default, only what the cell itself has changed: the session goes on from a checkpoint."""

from __future__ import annotations

import pytest

from kernelexec import Session
from tests.conftest import EVERY_WAY
from tests.support.pace import slow

#: What runs in containers and namespaces in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = (
    "test_the_state_from_before_the_cell_is_there[container-SIGKILL]",
    "test_the_state_from_before_the_cell_is_there[bubblewrap-os._exit]",
)
#: Where kernels can be copied.
COPIED = {"local", "container", "local without fork server"}
#: Where a new kernel needs a new container, for which no result waits.
IN_ITS_CONTAINER = {"container over a relay", "container without fork server"}
SWALLOWS = "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
ENDS = {
    "os._exit": ("import os; os._exit(3)", 3, None, "exited"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", 139, None, "crashed"),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, None, "killed"),
    "timeout": (SWALLOWS, 124, "timeout", "timeout"),
}


@pytest.fixture(scope="module", params=EVERY_WAY)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_state_from_before_the_cell_is_there(kind: str, session: Session, end: tuple[str, int, str | None, str]) -> None:
    code, exit_code, interrupted, cause = end
    session.execute("kept = [1]")
    result = session.execute(f"kept.append(2); print('before', flush=True)\n{code}", timeout=slow(2) if interrupted else 60)
    assert (result.status, result.exit_code, result.interrupted, result.cause) == ("error", exit_code, interrupted, cause)
    assert result.stdout == "before\n"
    following = session.execute("kept if 'kept' in globals() else None")
    assert following.ok
    if kind in IN_ITS_CONTAINER:
        assert (result.state, following.value, result.lost_names) == ("lost", None, ("kept",))
        return
    assert (result.state, following.value, result.lost_names) == ("restored", [1], ())
    origin = "from its checkpoint before this cell" if kind in COPIED else "in a new one: cell [1] has run again"
    assert any(f"the session goes on {origin}" in note for note in result.notes)
