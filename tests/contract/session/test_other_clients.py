"""Other clients of a session's kernel, such as JupyterLab: their cells cost the agent's no time, and are not ended for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from kernelexec import ExecutionResult, Session
from tests.support.pace import BOUND, slow, until

#: Nothing runs in containers in the gate: how a kernel is had makes no difference here.
ALSO_CONFINED = ()
_WAITS = """
import os, time
open('begun', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
print('ran to its end')
"""
_FORGES = """
import time
kernel = get_ipython().kernel
kernel.session.send(kernel.iopub_socket, 'execute_input', {}, {'msg_id': 'forged'})
while True: time.sleep(0.01)
"""


@pytest.fixture
def visitor(session: Session) -> Iterator[BlockingKernelClient]:
    session.execute("x = 1")
    client: Any = BlockingKernelClient(connection_file=str(session.connection_file))
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=BOUND)
    try:
        yield client
    finally:
        client.stop_channels()


def begin(session: Session, visitor: BlockingKernelClient) -> str:
    """Run a cell of the other client that waits for the file ``go``; return its id."""
    msg_id: str = visitor.execute(_WAITS)
    until((session.workspace / "begun").exists)
    return msg_id


def ended(visitor: Any, msg_id: str) -> bool:
    """Whether the other client's cell has run to its end."""
    while True:
        message = visitor.get_iopub_msg(timeout=BOUND)
        if message["parent_header"].get("msg_id") == msg_id and message["msg_type"] in ("stream", "error"):
            return bool(message["content"].get("text") == "ran to its end\n")


def test_the_time_of_a_cell_begins_when_it_runs(session: Session, visitor: BlockingKernelClient) -> None:
    msg_id = begin(session, visitor)
    results: list[ExecutionResult] = []
    agent = threading.Thread(target=lambda: results.append(session.execute("x", timeout=slow(0.5))))
    agent.start()
    agent.join(slow(1.5))
    assert agent.is_alive()
    progress = session.wait_for(session.executions()[-1], wait=0.01)
    assert (progress.status, progress.remark) == ("running", "it waits for a cell of another client of its kernel")
    (session.workspace / "go").touch()
    agent.join(BOUND)
    assert (results[0].status, results[0].text, results[0].state) == ("ok", "1", "kept")
    assert "Another client has run 1 cell in this kernel." in results[0].notes
    assert ended(visitor, msg_id)
    late = session.execute("import time\nprint('begun', flush=True)\ntime.sleep(600)", timeout=slow(0.5))
    assert (late.interrupted, late.state, late.notes) == ("timeout", "kept", ())


def test_an_interrupt_ends_the_own_cell_only(session: Session, visitor: BlockingKernelClient) -> None:
    msg_id = begin(session, visitor)
    waiting = session.execute("open('never', 'w').close()", wait=0.01)
    result = session.interrupt()
    assert result is not None
    assert result.execution_id == waiting.execution_id
    reason = "Cancelled while it waited for a cell of another client of its kernel."
    assert (result.status, result.notes) == ("aborted", (reason,))
    following = session.execute("x + 1", wait=0.01)
    (session.workspace / "go").touch()
    assert ended(visitor, msg_id)
    last = session.wait_for(following.execution_id, wait=BOUND).result
    assert last is not None
    assert (last.status, last.text, last.state) == ("ok", "2", "kept")
    assert not (session.workspace / "never").exists()


def test_a_cell_cannot_stop_its_own_clock(session: Session) -> None:
    result = session.execute(_FORGES, timeout=slow(0.5))
    assert (result.interrupted, result.state) == ("timeout", "kept")


def test_there_may_be_no_limit(session: Session) -> None:
    assert session.execute("1", timeout=float("inf")).ok
