"""Displays as text, for readers without a browser."""

from kernelexec.results.readable.display_text import DisplayReader, Tag, read_tags
from kernelexec.results.readable.widget_text import describe_widget

__all__ = ["DisplayReader", "Tag", "describe_widget", "read_tags"]
