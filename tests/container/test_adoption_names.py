"""Two servers of one workspace, each with a session of the same name, are killed: the next server goes on with one of them."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernelexec import AsyncExecutor
from kernelexec.records.journal import journal_path
from tests.container.test_adoption import labelled
from tests.support.engine import MINIMAL, needs_engine
from tests.support.night import named_cases
from tests.support.pace import BOUND, until
from tests.support.remains import runtime_directories

pytestmark = needs_engine

SERVER = """
import asyncio, sys
from kernelexec import AsyncExecutor

async def serve():
    workspace, image, number = sys.argv[1:]
    async with AsyncExecutor("container", workspace=workspace, config={"container": {"image": image}}) as executor:
        while (asked := (await asyncio.to_thread(sys.stdin.readline)).strip()):
            session = await executor.session("a")
            if asked == "open":
                await session.execute(f"server = {number}")
            elif asked == "run":
                await session.execute("counted = globals().get('counted', 0) + 1", request_id="once")
            else:
                await session.close()
            print(session.journal.name, flush=True)

asyncio.run(serve())
"""


class Server:
    """A process with an executor, which obeys the test."""

    def __init__(self, workspace: Path, number: int) -> None:
        command = [sys.executable, "-c", SERVER, str(workspace), MINIMAL, str(number)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, what: str) -> str:
        """Have it do something; the name of its session's journal."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        with self.process:
            self.process.kill()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    with ExitStack() as ending:
        servers = [Server(tmp_path, number) for number in (1, 2)]
        for server in servers:
            ending.callback(server.end)
        yield servers


@pytest.mark.parametrize("newest", named_cases({"older": False, "younger": True}, {"younger"}))
def test_the_session_that_kept_the_journal_of_the_name_goes_on_and_nothing_is_left_of_the_other(
    tmp_path: Path, servers: list[Server], caplog: pytest.LogCaptureFixture, *, newest: bool
) -> None:
    item, other = servers
    assert (item.tell("open"), other.tell("open")) == ("a.jsonl", "a@2.jsonl")
    if newest:  # the journal's keeper has the younger container
        item.tell("close")
        assert item.tell("open") == "a.jsonl"
    item.tell("run")
    for server in servers:
        server.process.send_signal(signal.SIGKILL)
    for server in servers:
        server.process.wait()

    async def run() -> None:
        async with (
            asyncio.timeout(BOUND),
            AsyncExecutor("container", workspace=tmp_path, config={"container": {"image": MINIMAL}}) as executor,
        ):
            assert executor.sessions() == ("a",)
            assert len(labelled(tmp_path)) == 1
            session = await executor.session("a")
            assert session.journal == journal_path(tmp_path, "a")
            await session.execute("counted = globals().get('counted', 0) + 1", request_id="once")
            assert (await session.execute("server, counted")).text == "(1, 1)"

    with caplog.at_level(logging.ERROR, "kernelexec"):
        asyncio.run(run())
    [reported] = [record for record in caplog.records if record.message == "kernelexec.session_not_adopted"]
    assert reported.__dict__["session"] == "a"
    assert labelled(tmp_path) == []
    until(lambda: runtime_directories() == set())
