"""The protocol's own SDK for Python."""

# /// script
# dependencies = ["mcp>=2"]
# ///

import asyncio

from mcp import Client, StdioServerParameters, stdio_client

from tests.clients.direct import play, read_blocks
from tests.clients.scenario import Answer


async def main() -> None:
    server = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])
    async with Client(stdio_client(server)) as client:

        async def call(tool: str, arguments: dict[str, object]) -> Answer:
            return read_blocks((await client.call_tool(tool, arguments)).content)

        await play([tool.name for tool in (await client.list_tools()).tools], call)


asyncio.run(main())
