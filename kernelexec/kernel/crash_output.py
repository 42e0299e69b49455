"""Output that a kernel had written before it died and could not send, read from the file of its launcher.

The format is in ``launcher/protocol``. The file is the kernel's own: whatever it holds, only text comes of it.
"""

from __future__ import annotations

from kernelexec.launcher.protocol import CRASH_HALF_BYTES, CRASH_KEY_BYTES, CRASH_OPEN_LENGTH, CRASH_RECORD


def has_begun(content: bytes, msg_id: str) -> bool:
    """Return whether a cell may have begun: False if the file names other cells only."""
    keys = {content[start : start + CRASH_KEY_BYTES].rstrip(b"\0") for start in range(0, len(content), CRASH_HALF_BYTES)} - {
        b""
    }
    return not keys or msg_id.encode()[:CRASH_KEY_BYTES] in keys


def undelivered_output(content: bytes, msg_id: str, received_bytes: int) -> list[tuple[int, str, str]]:
    """Return what a cell wrote after ``received_bytes``: the bytes lost before each text, its stream's name, and the text."""
    records = sorted(
        record
        for start in range(0, len(content) - CRASH_HALF_BYTES + 1, CRASH_HALF_BYTES)
        for record in _records(content[start : start + CRASH_HALF_BYTES], msg_id)
    )
    pieces = []
    for offset, name, text in records:
        lost = max(0, offset - received_bytes)
        missing = text[max(0, received_bytes - offset) :].decode("utf-8", "ignore")
        received_bytes = max(received_bytes, offset + len(text))
        if missing:
            pieces.append((lost, name, missing))
    return pieces


def _records(half: bytes, msg_id: str) -> list[tuple[int, str, bytes]]:
    records: list[tuple[int, str, bytes]] = []
    if half[:CRASH_KEY_BYTES].rstrip(b"\0") != msg_id.encode()[:CRASH_KEY_BYTES]:
        return records
    position = CRASH_KEY_BYTES
    while position + CRASH_RECORD.size <= len(half):
        stderr, length, offset = CRASH_RECORD.unpack_from(half, position)
        position += CRASH_RECORD.size
        text = half[position:].rstrip(b"\0") if length == CRASH_OPEN_LENGTH else half[position : position + length]
        if not text or (length != CRASH_OPEN_LENGTH and len(text) < length):
            break
        records.append((offset, "stderr" if stderr else "stdout", text))
        position += len(text)
        if length == CRASH_OPEN_LENGTH:
            break
    return records
