"""Sixty sequences by which a text drives a terminal, and what may reach one."""

from __future__ import annotations

import re

BODY = "UFdORUQ="
#: Sequences as a terminal takes them: with ESC, and as C1 controls.
SEQUENCES = (
    *(
        f"\x1b]{kind};{BODY}{end}"
        for kind in ("0", "1", "2", "52;c", "52;p", "8;;http://x.example")
        for end in ("\x07", "\x1b\\")
    ),
    *(f"\x9d{kind};{BODY}\x9c" for kind in ("0", "52;c", "8;;http://x.example", "9;4;1", "777;notify;a")),
    *("\x1b]4;1;?\x07", "\x1b]10;?\x07", "\x1b]11;?\x1b\\", "\x1b]1337;File=inline=1:AAAA\x07", "\x1b]50;CursorShape=1\x07"),
    *("\x1b[6n", "\x1b[5n", "\x1b[c", "\x1b[>c", "\x1b[=c", "\x1b[0c", "\x1bZ", "\x9b6n", "\x9bc", "\x05"),
    *("\x1b[18t", "\x1b[21t", "\x1b[20t", "\x1b[8;1;1t", "\x1b[?1049h", "\x1b[?25l", "\x1b[?2004h", "\x1b[?1000h"),
    *("\x1b[2J", "\x1b[3J", "\x1b[H", "\x1b[1;1H", "\x1b[5B", "\x1b[10;20r", "\x1b[4i", "\x1b[5i", "\x1b[99S", "\x1b[7L"),
    *("\x1bc", "\x1b7", "\x1b8", "\x1bM", "\x1bD", "\x1b(0", "\x1b#8", "\x1b>", "\x1b%G", "\x0e", "\x0f", "\x85"),
    *(f"\x1bP{kind}{BODY}\x1b\\" for kind in ("$q", "+q", "1000p")),
    *(f"\x1b{kind}{BODY}\x1b\\" for kind in "_^X"),
    *("\x1b_Ga=T,f=100,q=2,m=0;AAAA\x1b\\", "\x1bP0;1;0q#0;2;9;9;9#0~\x1b\\", "\x9fGa=T,f=100;AAAA\x9c"),
    *("\x1b[>4;2m", "\x1b[?4m", "\x1b[8m", "\x1b[0;8m", "\x1b[38;5;8;8m", "\x1b[1\nm\x1b[6n", "\x1b\x1b[6n", "\x1b[\x1b[6n"),
    *("\u202e", "\u2066", "\u200f", "\U000e0041", "\udc9b6n", "\udcc2\udc9b6n", "\x1b]0;a\n\x1b]52;c;YQ==\x07"),
)
#: The sequences that may pass: colours without concealment, the erasure of a line, moves upwards, and those of ours.
_ALLOWED = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[012]?K|\x1b\[\d+[AF]")
_CONCEALED = re.compile(r"\x1b\[(?:[0-9;]*;)?0*8(?:;[0-9;]*)?m")
_HARMFUL = re.compile(
    "[\x00-\x06\x0e-\x1a\x1b\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff]"
)


def harm(text: str) -> list[str]:
    """What would drive a terminal in a text that goes to it."""
    concealed = [match[0] for match in _CONCEALED.finditer(text) if not re.search(r"[345]8[;:]5[;:]8m", match[0])]
    return concealed + _HARMFUL.findall(_ALLOWED.sub("", text))
