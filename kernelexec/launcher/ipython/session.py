"""JSON of Jupyter messages."""

from __future__ import annotations

import json
from typing import Any

from jupyter_client.jsonutil import json_clean, json_default


def pack(value: Any) -> bytes:
    """Return JSON as Jupyter's own packer does, but escape a lone surrogate, for which that one drops the whole message.

    Raises:
        TypeError, ValueError: no JSON can be made of the value.
    """
    try:
        text = _dump(value)
    except (TypeError, ValueError, RecursionError):
        text = _dump(json_clean(value))
    return text.encode("utf-8", "backslashreplace")


def _dump(value: Any) -> str:
    return json.dumps(value, default=json_default, ensure_ascii=False, allow_nan=False)
