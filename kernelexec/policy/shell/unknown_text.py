"""The mark of text that only the running shell knows."""

from __future__ import annotations

#: Stands for such text among literal text. No command can hold this character.
UNKNOWN = "\x00"
