"""LlamaIndex's agent and MCP tools, with its model of OpenAI's responses."""

# /// script
# dependencies = ["llama-index-core", "llama-index-tools-mcp", "llama-index-llms-openai"]
# ///

import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool, ToolOutput
from llama_index.llms.openai import OpenAIResponses
from llama_index.tools.mcp import McpToolSpec
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import CallToolResult


async def convert(answer: CallToolResult) -> ToolOutput:
    texts = [TextBlock(text=block.text) for block in answer.content if block.type == "text"]
    pictures = [
        ImageBlock(image=block.data, image_mimetype=block.mime_type) for block in answer.content if block.type == "image"
    ]
    return ToolOutput(tool_name="", raw_input={}, raw_output=answer, blocks=[*texts, *pictures])


async def main() -> None:
    server = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])
    # BasicMCPClient begins a session, and so a kernel, for every call.
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        tools = await McpToolSpec(session).to_tool_list_async()
        # Without this the model gets answers as Python prints them, their pictures as text. OpenAI and OpenAILike drop them.
        tools = [FunctionTool(None, tool.metadata, tool.async_fn, async_callback=convert) for tool in tools]
        model = OpenAIResponses("gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])
        await FunctionAgent(tools=tools, llm=model).run("Go.")


asyncio.run(main())
