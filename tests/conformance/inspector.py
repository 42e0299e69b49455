"""The list of tools before the protocol's own inspector, over both transports and in both eras."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from kernelexec.mcp.server_options import ALL_TOOLS

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
ERAS = ("legacy", "modern")
TOOLS = len(ALL_TOOLS.tools)
_ASKING = 120.0


def inspect(prefix: Path, env: dict[str, str], server: list[str], url: str) -> list[str]:
    """What it finds wrong, of a server by its command, and of one by its address."""
    places = {"stdio": ["--", *server], "HTTP": []}
    actual = []
    for transport, behind in places.items():
        for era in ERAS:
            words = [str(prefix / "node_modules" / ".bin" / "mcp-inspector"), "--cli", "--protocol-era", era]
            words += [url, "--transport", "http"] if not behind else []
            actual += _inspect([*words, "--method", "tools/list", "--strict", *behind], env, f"inspector, {transport}, {era}")
    return actual


def _inspect(words: list[str], env: dict[str, str], what: str) -> list[str]:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_ASKING)
    if done.returncode:
        return [f"{what}: exit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"]
    count = len(json.loads(done.stdout)["tools"])
    if count != TOOLS:
        return [f"{what}: {count} tools are listed, there are {TOOLS}"]
    schema_lines = [line for line in done.stderr.splitlines() if "schema" in line.lower()]
    return [f"{what}: {schema_lines}"] if schema_lines else []
