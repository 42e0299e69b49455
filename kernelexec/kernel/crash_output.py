"""Output that a kernel had written before it died and could not send, read from the file of its launcher.

The format is in ``launcher/protocol``. The file is the kernel's own: whatever it holds, only text comes of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernelexec.launcher.protocol import CRASH_HALF_BYTES, CRASH_KEY_BYTES, CRASH_OPEN_LENGTH, CRASH_RECORD


def has_begun(content: bytes, msg_id: str) -> bool:
    """Return whether a cell may have begun: False if the file names other cells only."""
    keys = [key for key, _ in _halves(content) if key]
    return not keys or msg_id.encode()[:CRASH_KEY_BYTES] in keys


def undelivered_output(content: bytes, msg_id: str, received_bytes: int) -> list[tuple[int, str, str]]:
    """Return what a cell wrote after ``received_bytes``: the bytes lost before each text, its stream's name, and the text."""
    own_key = msg_id.encode()[:CRASH_KEY_BYTES]
    records = sorted(record for key, half in _halves(content) if key == own_key for record in _records(half))
    pieces = []
    for offset, name, text in records:
        lost = max(0, offset - received_bytes)
        missing = text[max(0, received_bytes - offset) :].decode("utf-8", "ignore")
        received_bytes = max(received_bytes, offset + len(text))
        if missing:
            pieces.append((lost, name, missing))
    return pieces


def _halves(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the whole halves of a file, each with the key of its cell, which is empty if there is none."""
    for start in range(0, len(content) - CRASH_HALF_BYTES + 1, CRASH_HALF_BYTES):
        half = content[start : start + CRASH_HALF_BYTES]
        yield half[:CRASH_KEY_BYTES].rstrip(b"\0"), half


def _records(half: bytes) -> list[tuple[int, str, bytes]]:
    records: list[tuple[int, str, bytes]] = []
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
