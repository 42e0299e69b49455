"""The container engine: the one door to Docker. What it raises leaves here as errors of ours."""

from __future__ import annotations

from kernelexec.docker import networks
from kernelexec.docker.address import host
from kernelexec.docker.client import Engine, Labelled, Seen, probe
from kernelexec.docker.container_usage import change, usage
from kernelexec.docker.create_options import LOOPBACK, Order, network_of
from kernelexec.docker.events import News
from kernelexec.docker.images.image_info import ImageFacts
from kernelexec.docker.images.image_info_cache import known_facts
from kernelexec.docker.location import Whereabouts

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
