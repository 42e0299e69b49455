"""Code as models send it: in a Markdown fence, or as the JSON of a call."""

from __future__ import annotations

import json

from kernelexec.adapters.shared.markdown import find_blocks

_JSON_CHARS = 1_000_000


def unwrap_code(code: str, language: str) -> tuple[str, str]:
    """Return the code that is meant, and its language: that of a fence around all of it, or the text of a ``{"code": ...}``."""
    sent = code.strip()
    if sent.startswith(("```", "~~~")) and sent.endswith(sent[:3]):
        blocks = find_blocks(sent)
        if len(blocks) == 1 and sent.count("\n") == blocks[0].code.count("\n") + 2:
            named = sent.splitlines()[0].strip("`~ ")
            return blocks[0].code, blocks[0].language if named else language
    if sent.startswith("{") and sent.endswith("}") and len(sent) <= _JSON_CHARS:
        try:
            call = json.loads(sent)
        except (ValueError, RecursionError):
            return code, language
        if isinstance(call.get("code"), str) and call.keys() <= {"code", "language"}:
            return call["code"], str(call.get("language", language))
    return code, language
