"""Pydantic AI, with its model of OpenAI's chat completions."""

# /// script
# dependencies = ["pydantic-ai-slim[mcp,openai]"]
# ///

import asyncio

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel


async def main() -> None:
    server = MCPToolset(StdioTransport("kernelexec", ["mcp", "--isolation", "local"]), init_timeout=60)
    agent = Agent(OpenAIChatModel("stub"), toolsets=[server])
    async with agent:
        await agent.run("Go.")


asyncio.run(main())
