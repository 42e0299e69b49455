"""Start and end of kernel processes: backends, provisioners, kernelspecs, environments and private directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.imports import make_getattr

if TYPE_CHECKING:
    from kernelexec.provisioning.availability import explain_unavailable as explain_unavailable
    from kernelexec.provisioning.backend import Backend as Backend
    from kernelexec.provisioning.backend import backend_for as backend_for
    from kernelexec.provisioning.host.confinement_rules import file_roots as file_roots
    from kernelexec.provisioning.host.fork_servers import ForkServers as ForkServers
    from kernelexec.provisioning.host.local_backend import LocalBackend as LocalBackend
    from kernelexec.provisioning.launch.kernelspec import InstalledSpec as InstalledSpec
    from kernelexec.provisioning.launch.kernelspec import create_provisioner as create_provisioner
    from kernelexec.provisioning.provisioner import KernelexecProvisioner as KernelexecProvisioner
    from kernelexec.provisioning.provisioner import KernelSpec as KernelSpec
    from kernelexec.provisioning.provisioner import RunningUserCommand as RunningUserCommand
    from kernelexec.provisioning.provisioner import UserCommand as UserCommand
    from kernelexec.provisioning.runtime.discovery import Handover as Handover
    from kernelexec.provisioning.runtime.kernel_directory import Connection as Connection
    from kernelexec.provisioning.runtime.kernel_directory import RuntimeDirectory as RuntimeDirectory
    from kernelexec.provisioning.runtime.kernel_directory import Transport as Transport
    from kernelexec.provisioning.runtime.owned_directory import load_identity as load_identity
    from kernelexec.provisioning.runtime.owned_directory import new_root as new_root

_MODULES = {
    "Backend": "backend",
    "Connection": "runtime.kernel_directory",
    "ForkServers": "host.fork_servers",
    "Handover": "runtime.discovery",
    "InstalledSpec": "launch.kernelspec",
    "KernelSpec": "provisioner",
    "KernelexecProvisioner": "provisioner",
    "LocalBackend": "host.local_backend",
    "RunningUserCommand": "provisioner",
    "RuntimeDirectory": "runtime.kernel_directory",
    "Transport": "runtime.kernel_directory",
    "UserCommand": "provisioner",
    "backend_for": "backend",
    "create_provisioner": "launch.kernelspec",
    "explain_unavailable": "availability",
    "file_roots": "host.confinement_rules",
    "load_identity": "runtime.owned_directory",
    "new_root": "runtime.owned_directory",
}
__all__ = sorted(_MODULES)  # noqa: PLE0605 - the names of the table

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__ = make_getattr(__name__, _MODULES)
