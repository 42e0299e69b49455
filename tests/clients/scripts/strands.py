"""Strands Agents, with its model of OpenAI's chat completions."""

# /// script
# dependencies = ["strands-agents[openai]"]
# ///

from mcp import StdioServerParameters, stdio_client
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.mcp import MCPClient

server = MCPClient(lambda: stdio_client(StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])))

with server:
    agent = Agent(model=OpenAIModel(model_id="stub"), tools=server.list_tools_sync())
    agent("Go.")
