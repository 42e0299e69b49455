"""Start and end of kernel processes: backends, provisioners, kernelspecs, environments and private directories."""

from __future__ import annotations

from jupyter_client.kernelspec import KernelSpec

from kernelexec.provisioning.backend import Backend, backend_for, explain_unavailable
from kernelexec.provisioning.host.confinement_rules import file_roots
from kernelexec.provisioning.host.fork_servers import ForkServers
from kernelexec.provisioning.host.local_backend import LocalBackend
from kernelexec.provisioning.launch.installed import InstalledSpec
from kernelexec.provisioning.launch.kernelspec import create_provisioner
from kernelexec.provisioning.provisioner import KernelexecProvisioner, RunningUserCommand, UserCommand
from kernelexec.provisioning.runtime.discovery import Handover
from kernelexec.provisioning.runtime.kernel_directory import Connection, RuntimeDirectory, Transport
from kernelexec.provisioning.runtime.locations import load_identity, new_root

__all__ = [
    "Backend",
    "Connection",
    "ForkServers",
    "Handover",
    "InstalledSpec",
    "KernelSpec",
    "KernelexecProvisioner",
    "LocalBackend",
    "RunningUserCommand",
    "RuntimeDirectory",
    "Transport",
    "UserCommand",
    "backend_for",
    "create_provisioner",
    "explain_unavailable",
    "file_roots",
    "load_identity",
    "new_root",
]
