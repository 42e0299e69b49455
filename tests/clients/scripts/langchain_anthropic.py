"""LangChain's agent and MCP adapters, with its model of Anthropic."""

# /// script
# dependencies = ["langchain", "langchain-mcp-adapters", "langchain-anthropic"]
# ///

import asyncio

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools


async def main() -> None:
    server = {"transport": "stdio", "command": "kernelexec", "args": ["mcp", "--isolation", "local"]}
    client = MultiServerMCPClient({"kernelexec": server})
    # The tools of client.get_tools() begin a session, and so a kernel, for every call.
    async with client.session("kernelexec") as session:
        agent = create_agent(ChatAnthropic(model="stub"), await load_mcp_tools(session))
        await agent.ainvoke({"messages": [{"role": "user", "content": "Go."}]})


asyncio.run(main())
