"""Displays as text, for readers without a browser."""

from kernelexec.results.readable.display_text import read_bundle_text
from kernelexec.results.readable.markup import Tag, read_tags
from kernelexec.results.readable.widget_text import describe_widget

__all__ = ["Tag", "describe_widget", "read_bundle_text", "read_tags"]
