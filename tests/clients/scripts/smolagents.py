"""Hugging Face's smolagents, with its model of OpenAI's chat completions."""

# /// script
# dependencies = ["smolagents[mcp,openai]", "mcp<2"]
# ///
# mcpadapt, by which smolagents connects, imports what mcp 2 no longer has. It gives only the first content block of an answer.
# lacks: picture

from mcp import StdioServerParameters
from smolagents import MCPClient, OpenAIServerModel, ToolCallingAgent

SERVER = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])

with MCPClient(SERVER, structured_output=False, adapter_kwargs={"client_session_timeout_seconds": 120.0}) as tools:
    # The agent demands all arguments that are not nullable, also those with a default.
    for tool in tools:
        for argument in tool.inputs.values():
            argument["nullable"] = True
    ToolCallingAgent(tools=tools, model=OpenAIServerModel("stub")).run("Go.")
