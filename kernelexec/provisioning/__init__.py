"""How a kernel process comes to be: its kernelspec, its private directory, its environment, and who starts and ends it."""

from __future__ import annotations

from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from kernelexec.provisioning.environment import scrubbed
from kernelexec.provisioning.installed import InstalledSpec, find_spec, installed
from kernelexec.provisioning.processes import Mark
from kernelexec.provisioning.runtime import Connection, RuntimeDirectory, new_root, stored_identity
from kernelexec.provisioning.spec import create_provisioner, guarded_spec, kernel_spec

__all__ = [
    "Connection",
    "InstalledSpec",
    "KernelProvisionerBase",
    "Mark",
    "RuntimeDirectory",
    "create_provisioner",
    "find_spec",
    "guarded_spec",
    "installed",
    "kernel_spec",
    "new_root",
    "scrubbed",
    "stored_identity",
]
