"""The interface between the kernel driver and provisioners: ours have all of it."""

from __future__ import annotations

from importlib.metadata import entry_points

from kernelexec.provisioning import KernelexecProvisioner


def test_each_entry_point_of_ours_is_a_kernelexec_provisioner() -> None:
    points = [
        point for point in entry_points(group="jupyter_client.kernel_provisioners") if point.name.startswith("kernelexec-")
    ]
    classes = {point.name: point.load() for point in points}
    assert sorted(classes) == [f"kernelexec-{kind}" for kind in ("bubblewrap", "container", "fork", "local", "wrapped")]
    assert all(issubclass(actual, KernelexecProvisioner) for actual in classes.values())
    assert len({actual.__name__ for actual in classes.values()}) == len(classes)
