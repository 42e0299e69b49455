"""fastmcp's client, in the newest era of the protocol."""

# /// script
# dependencies = ["fastmcp>=3"]
# ///

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from tests.clients.direct import play, read_blocks
from tests.clients.scenario import Answer


async def main() -> None:
    client = Client(StdioTransport("kernelexec", ["mcp", "--isolation", "local"]))
    async with client:

        async def call(tool: str, arguments: dict[str, object]) -> Answer:
            return read_blocks((await client.call_tool(tool, arguments, raise_on_error=False)).content)

        await play([tool.name for tool in await client.list_tools()], call)


asyncio.run(main())
