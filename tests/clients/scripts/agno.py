"""Agno, with its model of OpenAI's chat completions."""

# /// script
# dependencies = ["agno[mcp,openai]"]
# ///

import asyncio

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.tools.mcp import MCPTools


async def main() -> None:
    async with MCPTools(command="kernelexec mcp --isolation local", timeout_seconds=120) as tools:
        await Agent(model=OpenAIChat(id="stub"), tools=[tools]).arun("Go.")


asyncio.run(main())
