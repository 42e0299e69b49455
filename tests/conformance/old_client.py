"""The client of an old SDK, over both transports: it lists, runs cells, receives pictures and progress."""

from __future__ import annotations

import subprocess
from pathlib import Path

SDK = "mcp==1.30.0"
_ASKING = 120.0
_CLIENT = """
import asyncio, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client

async def work(read, write):
    async with ClientSession(read, write) as session:
        print((await session.initialize()).serverInfo.name)
        print(len((await session.list_tools()).tools), "tools")
        await session.call_tool("execute_code", {"code": "x = 41"})
        answer = await session.call_tool("execute_code", {"code": "x + 1"})
        print(answer.content[0].text.splitlines()[-1], answer.isError)
        picture = "from IPython.display import Image; import base64; Image(base64.b64decode(PNG))"
        png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        answer = await session.call_tool("execute_code", {"code": f"PNG = {png!r}\\n{picture}"})
        print([block.type for block in answer.content])
        command = await session.call_tool("execute_command", {"command": "echo out; exit 7"})
        print(command.structuredContent["exit_code"], command.structuredContent["stdout"].strip())
        told = []
        async def progress(done, total, message):
            told.append(message)
        code = "import time; print('begun', flush=True); time.sleep(6)"
        await session.call_tool("execute_code", {"code": code}, progress_callback=progress)
        print("begun" in str(told[0]))
        read_back = await session.read_resource("kernelexec://sessions/default/notebook")
        print(read_back.contents[0].mimeType)
        await session.call_tool("close_session", {"session": "default"})

async def main():
    if sys.argv[1].startswith("http"):
        async with streamablehttp_client(sys.argv[1]) as (read, write, _):
            await work(read, write)
    else:
        async with stdio_client(StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])) as (read, write):
            await work(read, write)

asyncio.run(main())
"""


def speak_old(python: Path, server: list[str], url: str, tools: int) -> list[str]:
    """What went wrong with a server by its command, and with one by its address."""
    kinds = "['text', 'image']"
    expected = ["kernelexec", f"{tools} tools", "42 False", kinds, "7 out", "True", "application/x-ipynb+json"]
    actual = []
    for transport, words in {"stdio": server, "HTTP": [url]}.items():
        done = subprocess.run(
            [str(python), "-c", _CLIENT, *words], capture_output=True, text=True, check=False, timeout=_ASKING
        )
        if done.stdout.splitlines() != expected or done.returncode:
            actual.append(f"{SDK}, {transport}: {done.stdout.splitlines()} instead of {expected}\n{done.stderr[-3000:]}")
    return actual
