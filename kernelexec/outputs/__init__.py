"""The outputs of a cell, folded from the messages of a request within fixed limits. No await, socket, clock or logger."""

from __future__ import annotations

from kernelexec.outputs.collector import Collector, Spill, feed_result, read_execution_count
from kernelexec.outputs.displays import Displays, WidgetStates

__all__ = [
    "Collector",
    "Displays",
    "Spill",
    "WidgetStates",
    "feed_result",
    "read_execution_count",
]
