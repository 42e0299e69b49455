"""Semantic Kernel's agent of chat completions, with its plugin for MCP."""

# /// script
# dependencies = ["semantic-kernel[mcp]"]
# ///
# lacks: picture
# It writes an answer's parts as one text, the picture as that of its base64, whatever the model's API takes.

import asyncio

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.connectors.mcp import MCPStdioPlugin


async def main() -> None:
    async with MCPStdioPlugin(name="kernelexec", command="kernelexec", args=["mcp", "--isolation", "local"]) as server:
        agent = ChatCompletionAgent(
            service=OpenAIChatCompletion("stub"),
            name="analyst",
            plugins=[server],
            # Its default ends the tools after five rounds.
            function_choice_behavior=FunctionChoiceBehavior.Auto(maximum_auto_invoke_attempts=20),
        )
        await agent.get_response(messages="Go.")


asyncio.run(main())
