"""What the registry of MCP servers is told of this one: ``server.json``, made rather than kept, so that its version is ours.

The registry takes a package for its server's by the line ``mcp-name: NAME`` in the package's README.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

#: Who publishes has to own what stands before the slash.
SERVER_NAME = "io.github.kernelexec/kernelexec"
_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
#: At most 100 characters.
_DESCRIPTION = "Run code and shell commands in persistent, sandboxed Jupyter kernels; one honest result per cell."
_VARIABLES = {
    "KERNELEXEC_USE_DOCKER": ("Whether code runs in containers: 1, which is the default, or 0 for this machine.", "boolean"),
    "KERNELEXEC_AGENT": ("The name of the agent that calls.", "string"),
    "DOCKER_HOST": ("Where the container engine answers, if it is not this machine's own.", "string"),
}


def server_json() -> dict[str, Any]:
    """The server as a package that clients fetch and start, which speaks over its stdin and stdout."""
    version = importlib.metadata.version("kernelexec")
    package = {
        "registryType": "pypi",
        "identifier": "kernelexec",
        "version": version,
        "runtimeHint": "uvx",
        "runtimeArguments": [{"type": "named", "name": "--from", "value": f"kernelexec[mcp]=={version}"}],
        "packageArguments": [{"type": "positional", "value": "mcp"}],
        "transport": {"type": "stdio"},
        "environmentVariables": [
            {"name": name, "description": described, "format": form, "isRequired": False, "isSecret": False}
            for name, (described, form) in _VARIABLES.items()
        ],
    }
    return {
        "$schema": _SCHEMA,
        "name": SERVER_NAME,
        "title": "kernelexec",
        "description": _DESCRIPTION,
        "version": version,
        "packages": [package],
    }
