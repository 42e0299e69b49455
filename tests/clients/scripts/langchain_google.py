"""LangChain's MCP adapters, with what its model of Google's Gemini would send: the stub model has not Google's API."""

# /// script
# dependencies = ["langchain-mcp-adapters", "langchain-google-genai"]
# ///

import asyncio
import json

from langchain_google_genai.chat_models import _convert_tool_message_to_parts
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_mcp_adapters.tools import load_mcp_tools

from tests.clients.direct import play
from tests.clients.scenario import Answer


async def main() -> None:
    server = {"transport": "stdio", "command": "kernelexec", "args": ["mcp", "--isolation", "local"]}
    client = MultiServerMCPClient({"kernelexec": server})
    # The tools of client.get_tools() begin a session, and so a kernel, for every call.
    async with client.session("kernelexec") as session:
        tools = {tool.name: tool for tool in await load_mcp_tools(session)}

        async def call(tool: str, arguments: dict[str, object]) -> Answer:
            message = await tools[tool].ainvoke({"type": "tool_call", "id": "1", "name": tool, "args": arguments})
            parts = _convert_tool_message_to_parts(message, model="gemini-2.5-flash")
            texts = [json.dumps(part.function_response.response) for part in parts if part.function_response]
            return Answer("".join(texts), sum(part.inline_data is not None for part in parts))

        await play(list(tools), call)


asyncio.run(main())
