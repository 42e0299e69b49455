"""The container engine: the one door to Docker. What it raises leaves here as errors of ours."""

from __future__ import annotations

from kernelexec.provisioning.engine.client import Engine, Labelled, Seen, probe
from kernelexec.provisioning.engine.facts import ImageFacts
from kernelexec.provisioning.engine.known import known_facts
from kernelexec.provisioning.engine.news import News
from kernelexec.provisioning.engine.settings import Order
from kernelexec.provisioning.engine.usage import change, usage

__all__ = ["Engine", "ImageFacts", "Labelled", "News", "Order", "Seen", "change", "known_facts", "probe", "usage"]
