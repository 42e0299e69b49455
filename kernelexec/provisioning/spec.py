"""From settings to a provisioner: the kernelspec stays in memory, jupyter_client finds the provisioner by its name."""

from __future__ import annotations

from pathlib import Path

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase

from kernelexec.errors import KernelStartFailed

LAUNCHER = Path(__file__).resolve().parent.parent / "inkernel"
PROVISIONER = "kernelexec-local"


def kernel_spec(python: str, connection_file: Path) -> KernelSpec:
    """The kernelspec of one kernel: our launcher in an interpreter of choice, under our provisioner."""
    return KernelSpec(
        argv=[python, str(LAUNCHER), "-f", str(connection_file)],
        display_name="Python (kernelexec)",
        language="python",
        interrupt_mode="message",
        metadata={"kernel_provisioner": {"provisioner_name": PROVISIONER, "config": {}}},
    )


def create_provisioner(kernel_id: str, spec: KernelSpec) -> KernelProvisionerBase:
    """The provisioner that the kernelspec names.

    Raises:
        KernelStartFailed: it is not registered: the installation is incomplete.
    """
    try:
        return KernelProvisionerFactory.instance().create_provisioner_instance(kernel_id, spec, parent=None)
    except ModuleNotFoundError as exc:
        message = f"{exc} Reinstall kernelexec: its entry points are missing."
        raise KernelStartFailed(message) from exc
