"""How a kernel process comes to be: its kernelspec, its private directory, its environment, and who starts and ends it."""

from __future__ import annotations

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from kernelexec.provisioning.bases import new_root, stored_identity
from kernelexec.provisioning.environment import scrubbed
from kernelexec.provisioning.forks import Forks
from kernelexec.provisioning.grants import file_roots
from kernelexec.provisioning.handover import Handover
from kernelexec.provisioning.here import LocalPlace
from kernelexec.provisioning.installed import Installed, InstalledSpec, Transport
from kernelexec.provisioning.places import Place, place_of, unavailable
from kernelexec.provisioning.processes import Mark
from kernelexec.provisioning.runtime import Connection, RuntimeDirectory
from kernelexec.provisioning.secrets import Vault
from kernelexec.provisioning.spec import create_provisioner

__all__ = [
    "Connection",
    "Forks",
    "Handover",
    "Installed",
    "InstalledSpec",
    "KernelProvisionerBase",
    "KernelSpec",
    "LocalPlace",
    "Mark",
    "Place",
    "RuntimeDirectory",
    "Transport",
    "Vault",
    "create_provisioner",
    "file_roots",
    "new_root",
    "place_of",
    "scrubbed",
    "stored_identity",
    "unavailable",
]
