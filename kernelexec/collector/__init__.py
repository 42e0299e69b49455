"""What one cell made, folded from the messages of its request, within fixed bounds. No await, socket, clock or logger."""

from __future__ import annotations

from kernelexec.collector.again import feed
from kernelexec.collector.collector import Collector, Spill, execution_count
from kernelexec.collector.displays import Displays
from kernelexec.collector.masked import MaskedCollector, Veil

__all__ = ["Collector", "Displays", "MaskedCollector", "Spill", "Veil", "execution_count", "feed"]
