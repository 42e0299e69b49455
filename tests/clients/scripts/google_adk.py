"""Google's ADK, with LiteLLM's model of OpenAI's chat completions."""

# /// script
# dependencies = ["google-adk[mcp]", "litellm"]
# ///

import asyncio
import base64
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
from google.genai import types
from mcp import StdioServerParameters

SERVER = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])


def show_pictures(tool_response: dict[str, Any], **_: object) -> dict[str, Any]:
    """Make parts of the pictures, which the toolset leaves in the answer as base64 text."""
    for number, block in enumerate(content := tool_response.get("content", [])):
        if block["type"] == "image":
            content[number] = types.Part.from_bytes(data=base64.b64decode(block["data"]), mime_type=block["mimeType"])
    return tool_response


async def main() -> None:
    tools = McpToolset(connection_params=StdioConnectionParams(server_params=SERVER, timeout=120))
    agent = LlmAgent(name="analyst", model=LiteLlm("openai/stub"), tools=[tools], after_tool_callback=show_pictures)
    async with InMemoryRunner(agent) as runner:
        await runner.run_debug("Go.", quiet=True)


asyncio.run(main())
