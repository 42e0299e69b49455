"""OpenAI's agents SDK, with its default model: that of the Responses API, which takes pictures in answers."""

# /// script
# dependencies = ["openai-agents"]
# ///

import asyncio

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio

set_tracing_disabled(True)


async def main() -> None:
    server = MCPServerStdio(
        {"command": "kernelexec", "args": ["mcp", "--isolation", "local"]}, client_session_timeout_seconds=120
    )
    async with server:
        agent = Agent("analyst", mcp_servers=[server], model="stub")
        await Runner.run(agent, "Go.", max_turns=20)


asyncio.run(main())
