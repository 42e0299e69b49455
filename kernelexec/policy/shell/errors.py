"""The error of a script that cannot be judged."""

from __future__ import annotations


class UnparsableScript(Exception):
    """A script is not in the language of bash, or a part of it is not literal where only literal text can be judged."""
