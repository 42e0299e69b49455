"""What one cell made, folded from the messages of its request, within fixed bounds. No await, socket, clock or logger."""

from __future__ import annotations

from kernelexec.outputs.collector import Collector, Spill, execution_count
from kernelexec.outputs.displays import Displays
from kernelexec.outputs.masked import MaskedCollector, Veil
from kernelexec.outputs.replay_result import feed

__all__ = ["Collector", "Displays", "MaskedCollector", "Spill", "Veil", "execution_count", "feed"]
