"""What is said of a script that cannot be read."""

from __future__ import annotations


class UnparsableScript(Exception):
    """A script, or a part of one, that is no shell's language, or of which too much cannot be known."""
