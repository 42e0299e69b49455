"""CrewAI, with its model of OpenAI's chat completions."""

# /// script
# dependencies = ["crewai", "crewai-tools[mcp]"]
# ///
# crewai-tools' adapter gives only the texts of an answer.
# lacks: picture

from crewai import LLM, Agent
from crewai_tools import MCPServerAdapter
from mcp import StdioServerParameters

SERVER = StdioServerParameters(command="kernelexec", args=["mcp", "--isolation", "local"])

# Agent(mcps=[...]) would start a server for each call: variables would be lost.
with MCPServerAdapter(SERVER) as tools:
    agent = Agent(role="analyst", goal="analyse", backstory="none", llm=LLM("openai/gpt-4o"), tools=tools)
    agent.kickoff("Go.")
