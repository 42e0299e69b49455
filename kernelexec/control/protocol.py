"""Requests to an executor's control socket and its answers: one request a connection, in lines.

The first line of a client is the key, the second its request. The first answer is ``READY`` or an error, for the key; the next
ones are for the request. A connection that is closed before ``READY`` has asked for nothing: the client may try again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelexec import errors
from kernelexec.errors import CheckpointRefused, KernelexecError
from kernelexec.results.json_values import read_list

#: The longest request, and the longest answer, in bytes.
REQUEST_BYTES, ANSWER_BYTES = 16 * 2**20, 512 * 2**20
#: How long a client may take to send its request, and a server to answer one that no cell holds up, in seconds.
ANSWER_SECONDS = 30.0
#: The longest key, in bytes, and how long a client may take to send it, in seconds.
KEY_BYTES, KEY_SECONDS = 200, 5.0
#: How often a client connects until its key is read, while other processes take the socket's connections.
ATTEMPTS_MAX = 100
READY: Mapping[str, Any] = {"ready": True}


def describe_error(exc: KernelexecError) -> dict[str, Any]:
    """Return an error as an answer."""
    obstacles = {"obstacles": exc.obstacles} if isinstance(exc, CheckpointRefused) else {}
    return {"error": str(exc), "kind": type(exc).__name__, **obstacles}


def read_error(answer: Mapping[str, Any]) -> KernelexecError:
    """Return the error of an answer, of its own class where that is one of ``errors``."""
    kind = getattr(errors, str(answer.get("kind")), None)
    known = kind if isinstance(kind, type) and issubclass(kind, KernelexecError) else KernelexecError
    error = known(str(answer["error"]))
    if isinstance(error, CheckpointRefused) and isinstance(obstacles := answer.get("obstacles"), dict):
        error.obstacles = {kind: tuple(read_list(names)) for kind, names in obstacles.items()}
    return error
