"""``server.json`` for the registry of MCP servers, generated so that its version is the package's.

The registry accepts a package if its README has the line ``mcp-name: NAME``.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

#: The publisher must own the namespace before the slash.
SERVER_NAME = "io.github.kernelexec/kernelexec"
_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
#: At most 100 characters.
_DESCRIPTION = "Run code and shell commands in persistent, sandboxed Jupyter kernels; one honest result per cell."
_VARIABLES = {
    "KERNELEXEC_USE_DOCKER": ("Whether code runs in containers: 1, the default, or 0 for this machine.", "boolean"),
    "KERNELEXEC_AGENT": ("The name of the calling agent.", "string"),
    "DOCKER_HOST": ("The address of the container engine, if it is not on this machine.", "string"),
}


def make_server_json() -> dict[str, Any]:
    """Return the server as a package that clients install and start over stdin and stdout."""
    version = importlib.metadata.version("kernelexec")
    package = {
        "registryType": "pypi",
        "identifier": "kernelexec",
        "version": version,
        "runtimeHint": "uvx",
        "runtimeArguments": [{"type": "named", "name": "--from", "value": f"kernelexec=={version}"}],
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
