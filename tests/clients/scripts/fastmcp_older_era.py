"""fastmcp's client, in the older era of the protocol."""

# /// script
# dependencies = ["fastmcp>=3"]
# ///

import asyncio

from fastmcp import Client
from fastmcp.client.transports import StdioTransport

from tests.clients.direct import play
from tests.clients.scenario import Answer


async def main() -> None:
    client = Client(StdioTransport("kernelexec", ["mcp", "--isolation", "local"]), mode="legacy")
    async with client:

        async def call(tool: str, arguments: dict[str, object]) -> Answer:
            answer = await client.call_tool(tool, arguments, raise_on_error=False)
            texts = [block.text for block in answer.content if block.type == "text"]
            return Answer("".join(texts), sum(block.type == "image" for block in answer.content))

        await play([tool.name for tool in await client.list_tools()], call)


asyncio.run(main())
