"""mcp-use's agent, with LangChain's model of OpenAI."""

# /// script
# dependencies = ["mcp-use", "langchain-openai"]
# ///

import asyncio

from langchain_openai import ChatOpenAI
from mcp_use import MCPAgent, MCPClient


async def main() -> None:
    server = {"command": "kernelexec", "args": ["mcp", "--isolation", "local"]}
    client = MCPClient({"mcpServers": {"kernelexec": server}})
    # OpenAI's chat completions, which are the default, take no picture in a tool's answer.
    agent = MCPAgent(llm=ChatOpenAI(model="stub", use_responses_api=True), client=client, max_steps=20)
    await agent.run("Go.")
    await client.close_all_sessions()


asyncio.run(main())
