"""How a kernel process comes to be: its kernelspec, its private directory, its environment, and who starts and ends it."""

from __future__ import annotations

from jupyter_client.kernelspec import KernelSpec

from kernelexec.provisioning.backend import Place, place_of, unavailable
from kernelexec.provisioning.host.backend import LocalPlace
from kernelexec.provisioning.host.file_roots import file_roots
from kernelexec.provisioning.host.fork_servers import Forks
from kernelexec.provisioning.jupyter.installed import Installed, InstalledSpec, Transport
from kernelexec.provisioning.launch.environment import scrubbed
from kernelexec.provisioning.launch.kernelspec import create_provisioner
from kernelexec.provisioning.provisioners.base import KernelexecProvisioner
from kernelexec.provisioning.runtime.handover import Handover
from kernelexec.provisioning.runtime.kernel_directory import Connection, RuntimeDirectory
from kernelexec.provisioning.runtime.locations import new_root, stored_identity
from kernelexec.provisioning.runtime.processes import Mark

__all__ = [
    "Connection",
    "Forks",
    "Handover",
    "Installed",
    "InstalledSpec",
    "KernelSpec",
    "KernelexecProvisioner",
    "LocalPlace",
    "Mark",
    "Place",
    "RuntimeDirectory",
    "Transport",
    "create_provisioner",
    "file_roots",
    "new_root",
    "place_of",
    "scrubbed",
    "stored_identity",
    "unavailable",
]
