"""Microsoft's Agent Framework, with its model of the Responses API, which takes pictures in answers."""

# /// script
# dependencies = ["agent-framework-core", "agent-framework-openai", "mcp", "tenacity"]
# ///
# Its core needs the last two for MCP, and says so in no extra but that of everything.

import asyncio

from agent_framework import Agent, MCPStdioTool
from agent_framework.openai import OpenAIChatClient


async def main() -> None:
    server = MCPStdioTool(name="kernelexec", command="kernelexec", args=["mcp", "--isolation", "local"])
    async with server, Agent(client=OpenAIChatClient(model="stub"), tools=server) as agent:
        await agent.run("Go.")


asyncio.run(main())
