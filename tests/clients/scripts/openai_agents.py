"""OpenAI's agents SDK, with a model of chat completions."""

# /// script
# dependencies = ["openai-agents"]
# ///

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

set_tracing_disabled(True)


async def main() -> None:
    server = MCPServerStdio(
        {"command": "kernelexec", "args": ["mcp", "--isolation", "local"]}, client_session_timeout_seconds=120
    )
    async with server:
        model = OpenAIChatCompletionsModel("stub", AsyncOpenAI())
        agent = Agent("analyst", mcp_servers=[server], model=model)
        await Runner.run(agent, "Go.", max_turns=20)


asyncio.run(main())
