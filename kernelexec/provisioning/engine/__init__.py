"""The container engine: the one door to Docker. What it raises leaves here as errors of ours."""

from __future__ import annotations

from kernelexec.provisioning.engine import networks
from kernelexec.provisioning.engine.address import host
from kernelexec.provisioning.engine.client import Engine, Labelled, Seen, probe
from kernelexec.provisioning.engine.facts import ImageFacts
from kernelexec.provisioning.engine.known import known_facts
from kernelexec.provisioning.engine.news import News
from kernelexec.provisioning.engine.settings import LOOPBACK, Order, network_of
from kernelexec.provisioning.engine.usage import change, usage
from kernelexec.provisioning.engine.whereabouts import Whereabouts

__all__ = [
    "LOOPBACK",
    "Engine",
    "ImageFacts",
    "Labelled",
    "News",
    "Order",
    "Seen",
    "Whereabouts",
    "change",
    "host",
    "known_facts",
    "network_of",
    "networks",
    "probe",
    "usage",
]
