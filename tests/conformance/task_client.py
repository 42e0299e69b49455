"""Another author's client of the tasks extension, over both transports: it gets pictures, commands and the end of a task."""

from __future__ import annotations

import subprocess
from pathlib import Path

CLIENT = "fastmcp[tasks]>=4.1,<5"
_ASKING = 120.0
_WORK = """
import asyncio, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp_tasks import call_tool_task

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = f"import base64, time; from IPython.display import Image, display; display(Image(base64.b64decode('{PNG}'))); "

async def work(client):
    task = await call_tool_task(client, "execute_code", {"code": PICTURE + "x = 41; time.sleep(2)"})
    print((await task.status()).status)
    answer = await task.result()
    print([block.type for block in answer.content], answer.meta["kernelexec/result"]["status"])
    answer = await client.call_tool("execute_command", {"command": "sleep 1; exit 7"}, raise_on_error=False)
    print(answer.structured_content["exit_code"])
    task = await call_tool_task(client, "execute_code", {"code": "time.sleep(60)"})
    await task.cancel()
    print((await task.wait()).status)
    print((await client.call_tool("execute_code", {"code": "x + 1"})).content[0].text.splitlines()[-1])
    await client.call_tool("close_session", {"session": "default"})

async def main():
    first, rest = sys.argv[1], sys.argv[2:]
    headers = {"x-kernelexec-agent": "tasks"}
    http = first.startswith("http")
    async with Client(StreamableHttpTransport(first, headers=headers) if http else StdioTransport(first, rest)) as client:
        await work(client)

asyncio.run(main())
"""


def speak_of_tasks(python: Path, server: list[str], url: str) -> list[str]:
    """What went wrong with a server by its command, and with one by its address."""
    expected = ["working", "['text', 'image'] ok", "7", "cancelled", "42"]
    actual = []
    for transport, words in {"stdio": server, "HTTP": [url]}.items():
        done = subprocess.run([str(python), "-c", _WORK, *words], capture_output=True, text=True, check=False, timeout=_ASKING)
        if done.stdout.splitlines() != expected or done.returncode:
            actual.append(f"{CLIENT}, {transport}: {done.stdout.splitlines()} instead of {expected}\n{done.stderr[-3000:]}")
    return actual
