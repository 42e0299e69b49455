"""AutoGen's agent, with the workbench of its extensions."""

# /// script
# dependencies = ["autogen-ext[mcp,openai]", "autogen-agentchat", "mcp<2"]
# ///
# lacks: picture
# Its agent writes an answer's parts as one text, the picture as that of its base64.
# It does not say that it cannot import the second version of the MCP SDK.

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams


async def main() -> None:
    server = StdioServerParams(command="kernelexec", args=["mcp", "--isolation", "local"], read_timeout_seconds=120)
    async with McpWorkbench(server) as workbench:
        model = OpenAIChatCompletionClient(model="gpt-4o")
        agent = AssistantAgent("analyst", model, workbench=workbench, max_tool_iterations=20)
        await agent.run(task="Go.")


asyncio.run(main())
