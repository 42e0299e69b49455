"""A server with two sessions in containers, which is killed while a cell runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.engine import IMAGE

SERVER = """
import asyncio, json, sys
from kernelexec import AsyncExecutor

async def serve():
    workspace, options = sys.argv[1], json.loads(sys.argv[2])
    async with AsyncExecutor("container", workspace=workspace, config={"container": options}) as executor:
        a, b = await executor.session("a"), await executor.session("b")
        await a.execute("x = 41")
        await b.execute("def answer(): return 42")
        print("ready", flush=True)
        await a.execute(sys.argv[3], request_id="once", on_output=lambda output: print("output", flush=True))

asyncio.run(serve())
"""

COUNTING = "import time, pathlib\nfor n in range(40):\n    print(n, flush=True)\n    time.sleep(0.1)\nx += 1\nx"


def killed_server(workspace: Path, cell: str = COUNTING, **options: object) -> None:
    """A server with two sessions, one of which runs a cell when it gets SIGKILL."""
    command = [sys.executable, "-c", SERVER, str(workspace), json.dumps({"image": IMAGE, **options}), cell]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        for _ in range(2):
            assert server.stdout.readline() == "output\n"
        server.send_signal(signal.SIGKILL)
