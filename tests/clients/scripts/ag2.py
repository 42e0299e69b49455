"""AG2 1, with its model of OpenAI's responses."""

# /// script
# dependencies = ["ag2[mcp,openai]"]
# ///

import asyncio
import re
import subprocess

from ag2 import Agent
from ag2.config import OpenAIResponsesConfig
from ag2.tools.toolkits import MCPServerConfig, MCPToolkit

COMMAND = ["kernelexec", "mcp", "--isolation", "local", "--http", "--port", "0"]


async def main(address: str) -> None:
    # The toolkit makes a new connection for each call; the header keeps the session.
    server = MCPServerConfig(server_url=address, headers={"X-Kernelexec-Agent": "analyst"})
    # Its model of chat completions refuses pictures.
    await Agent("analyst", config=OpenAIResponsesConfig("stub"), tools=[MCPToolkit(server)]).ask("Go.")


with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True) as process:
    try:
        asyncio.run(main(next(match[0] for line in process.stderr if (match := re.search(r"http://\S+/mcp", line)))))
    finally:
        process.terminate()
