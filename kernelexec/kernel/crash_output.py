"""What a kernel had written before it died and could no longer send: read from the file that its launcher left.

The format stands in ``launcher/protocol``. The file is the kernel's own: whatever it holds, this only yields text.
"""

from __future__ import annotations

from kernelexec.launcher.protocol import CRASH_HALF_BYTES as HALF_BYTES
from kernelexec.launcher.protocol import CRASH_KEY_BYTES as KEY_BYTES
from kernelexec.launcher.protocol import CRASH_OPEN_LENGTH as OPEN_LENGTH
from kernelexec.launcher.protocol import CRASH_RECORD as RECORD


def unsent(content: bytes, msg_id: str, received_bytes: int) -> list[tuple[int, str, str]]:
    """What a cell wrote after the ``received_bytes`` that arrived: bytes lost before a text, its stream's name, the text."""
    records = sorted(
        record
        for start in range(0, len(content) - HALF_BYTES + 1, HALF_BYTES)
        for record in _records(content[start : start + HALF_BYTES], msg_id)
    )
    found = []
    for offset, name, text in records:
        lost = max(0, offset - received_bytes)
        missing = text[max(0, received_bytes - offset) :].decode("utf-8", "ignore")
        received_bytes = max(received_bytes, offset + len(text))
        if missing:
            found.append((lost, name, missing))
    return found


def _records(half: bytes, msg_id: str) -> list[tuple[int, str, bytes]]:
    found: list[tuple[int, str, bytes]] = []
    if half[:KEY_BYTES].rstrip(b"\0") != msg_id.encode()[:KEY_BYTES]:
        return found
    position = KEY_BYTES
    while position + RECORD.size <= len(half):
        stderr, length, offset = RECORD.unpack_from(half, position)
        position += RECORD.size
        text = half[position:].rstrip(b"\0") if length == OPEN_LENGTH else half[position : position + length]
        if not text or (length != OPEN_LENGTH and len(text) < length):
            break
        found.append((offset, "stderr" if stderr else "stdout", text))
        position += len(text)
        if length == OPEN_LENGTH:
            break
    return found
