"""JSON of Jupyter messages."""

from __future__ import annotations

import json
from typing import Any

from jupyter_client.jsonutil import json_clean, json_default

#: One encoder for all values. Without a check for cycles, a value that contains itself ends with RecursionError.
_encode = json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False, check_circular=False).encode


def pack(value: Any) -> bytes:
    """Return JSON as Jupyter's own packer does, but escape a lone surrogate, for which that one drops the whole message.

    Raises:
        TypeError, ValueError: the value cannot be encoded as JSON.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError):
        text = _encode(json_clean(value))
    return text.encode("utf-8", "backslashreplace")
