"""The machine-readable record in the ``_meta`` of an answer: its short form has at most 300 bytes."""

from __future__ import annotations

from typing import Any

from kernelexec.mcp.calls.progress import PartialResult
from kernelexec.results.model.notes import JOINED_MAX
from kernelexec.text import clean

#: The key of the record.
RECORD = "kernelexec/result"
_BULKY = ("outputs", "late")
#: Fields of the short form that are left out unless they are set.
_OPTIONAL = ("interrupted", "cause", "truncated")
_SECONDS_DIGITS = 3


def make_record(partial_result: PartialResult, *, is_whole: bool) -> dict[str, Any]:
    """Return the result as a record without outputs, whole or in its short form."""
    result = partial_result.result
    progress: dict[str, Any] = {}
    if result.status == "running":
        progress = {"cursor": partial_result.cursor, "place": partial_result.queue_position}
    if not is_whole:
        fields: dict[str, Any] = {"execution_id": result.execution_id, "status": result.status, "state": result.state}
        fields |= {"exit_code": result.exit_code, "kernel_epoch": result.kernel_epoch, "total_bytes": result.total_bytes}
        fields |= {"seconds": round(result.timing.run, _SECONDS_DIGITS)}
        return fields | {name: value for name in _OPTIONAL if (value := getattr(result, name))} | progress
    plain = {key: value for key, value in result.to_dict().items() if key not in _BULKY}
    for key in ("lost_names", "files", "notes"):
        plain[key] = plain[key][:JOINED_MAX]
    record: dict[str, Any] = clean(plain | progress)
    return record
