"""Haystack's agent and MCP tools, with its model of OpenAI's responses."""

# /// script
# dependencies = ["haystack-ai", "mcp-haystack"]
# ///

import json

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, ImageContent, TextContent
from haystack_integrations.tools.mcp import MCPToolset, StdioServerInfo


def convert(answer: str) -> list[TextContent | ImageContent]:
    blocks = json.loads(answer)["content"]
    texts = [TextContent(block["text"]) for block in blocks if block["type"] == "text"]
    return [*texts, *(ImageContent(block["data"], block["mimeType"]) for block in blocks if block["type"] == "image")]


# Without this the model gets answers as JSON, their pictures as text. OpenAIChatGenerator refuses an answer with a picture.
outputs = {tool: {"handler": convert, "raw_result": True} for tool in ("execute_code", "wait_execution")}
server = StdioServerInfo(command="kernelexec", args=["mcp", "--isolation", "local"])
tools = MCPToolset(server, invocation_timeout=120, outputs_to_string=outputs)
agent = Agent(chat_generator=OpenAIResponsesChatGenerator(model="stub"), tools=tools)
agent.run(messages=[ChatMessage.from_user("Go.")])
tools.close()
