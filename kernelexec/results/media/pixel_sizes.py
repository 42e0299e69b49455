"""The sizes of pictures in pixels, by their headers: the content is not decoded."""

from __future__ import annotations

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_GIF = (b"GIF87a", b"GIF89a")
#: Markers of JPEG: frames, whose header has the size, but for three of the same range that are none (ITU T.81, table B.1).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEGMENTS_MAX = 1000


def read_pixel_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP; None for another or a damaged one."""
    if content.startswith(_PNG):
        size = _number(content[16:20]), _number(content[20:24])
    elif content[:6] in _GIF:
        size = int.from_bytes(content[6:8], "little"), int.from_bytes(content[8:10], "little")
    elif content.startswith(_JPEG):
        size = _read_jpeg(content)
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        size = _read_webp(content)
    else:
        return None
    return size if all(size) else None


def _read_jpeg(content: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_SEGMENTS_MAX):
        marker = content[at : at + 2]
        if len(marker) < 2 or marker[0] != 0xFF:  # noqa: PLR2004 - every segment begins so
            break
        if marker[1] in _FRAMES:
            return _number(content[at + 7 : at + 9]), _number(content[at + 5 : at + 7])
        at += 2 + _number(content[at + 2 : at + 4])
    return 0, 0


def _read_webp(content: bytes) -> tuple[int, int]:
    """Read the size by the kind of the first chunk (RFC 9649): lossy, lossless or extended."""
    match content[12:16]:
        case b"VP8 ":
            return int.from_bytes(content[26:28], "little") & 0x3FFF, int.from_bytes(content[28:30], "little") & 0x3FFF
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return int.from_bytes(content[24:27], "little") + 1, int.from_bytes(content[27:30], "little") + 1
    return 0, 0


def _number(field: bytes) -> int:
    return int.from_bytes(field, "big")
