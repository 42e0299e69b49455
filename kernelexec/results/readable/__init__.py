"""Displays as text, for readers without a browser."""

from kernelexec.results.readable.display_text import read_bundle_text
from kernelexec.results.readable.markup import Tag, read_tags

__all__ = ["Tag", "read_bundle_text", "read_tags"]
