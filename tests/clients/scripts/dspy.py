"""DSPy's tools. Its agents want answers in forms of their own, so the script makes the calls that an agent would."""

# /// script
# dependencies = ["dspy", "mcp"]
# ///
# DSPy gives only the texts of an answer that has any.
# lacks: picture

import asyncio

import dspy
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.clients.direct import play
from tests.clients.scenario import Answer

SERVER = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])


async def main() -> None:
    async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = {tool.name: dspy.Tool.from_mcp_tool(session, tool) for tool in (await session.list_tools()).tools}

        async def call(tool: str, arguments: dict[str, object]) -> Answer:
            result = await tools[tool].acall(**arguments)
            parts = result if isinstance(result, list) else [result]
            texts = [part for part in parts if isinstance(part, str)]
            return Answer("".join(texts), len(parts) - len(texts))

        await play(list(tools), call)


asyncio.run(main())
