"""LangChain's agent and MCP adapters, with its model of OpenAI."""

# /// script
# dependencies = ["langchain", "langchain-mcp-adapters", "langchain-openai"]
# ///

import asyncio

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools
from langchain_openai import ChatOpenAI


async def main() -> None:
    server = {"transport": "stdio", "command": "kernelexec", "args": ["mcp", "--isolation", "local"]}
    client = MultiServerMCPClient({"kernelexec": server})
    # The tools of client.get_tools() begin a session, and so a kernel, for every call.
    async with client.session("kernelexec") as session:
        # OpenAI's chat completions, which are the default, take no picture in a tool's answer.
        agent = create_agent(ChatOpenAI(model="stub", use_responses_api=True), await load_mcp_tools(session))
        await agent.ainvoke({"messages": [{"role": "user", "content": "Go."}]})


asyncio.run(main())
