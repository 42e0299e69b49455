"""Requests to an executor's control socket and its answers: lines of JSON, one request a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelexec import errors
from kernelexec.errors import KernelexecError

#: The longest request, and the longest answer, in bytes.
REQUEST_BYTES, ANSWER_BYTES = 16 * 2**20, 512 * 2**20
#: How long a client may take to send its request, and a server to answer one that no cell holds up, in seconds.
ANSWER_SECONDS = 30.0
KEY_BYTES = 200


def describe_error(exc: KernelexecError) -> dict[str, Any]:
    """Return an error as an answer."""
    return {"error": str(exc), "kind": type(exc).__name__}


def read_error(answer: Mapping[str, Any]) -> KernelexecError:
    """Return the error of an answer, of its own class where that is one of ``errors``."""
    kind = getattr(errors, str(answer.get("kind")), None)
    known = kind if isinstance(kind, type) and issubclass(kind, KernelexecError) else KernelexecError
    return known(str(answer["error"]))
