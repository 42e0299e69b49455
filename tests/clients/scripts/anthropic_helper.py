"""Anthropic's SDK with its own helpers for MCP and its loop over tools."""

# /// script
# dependencies = ["anthropic[mcp]"]
# ///

import asyncio

from anthropic import AsyncAnthropic
from anthropic.lib.tools.mcp import async_mcp_tool
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main() -> None:
    server = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        listed = await session.list_tools()
        runner = AsyncAnthropic().beta.messages.tool_runner(
            model="stub",
            max_tokens=1024,
            tools=[async_mcp_tool(tool, session) for tool in listed.tools],
            messages=[{"role": "user", "content": "Go."}],
        )
        await runner.until_done()


asyncio.run(main())
