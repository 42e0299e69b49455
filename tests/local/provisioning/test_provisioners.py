"""The interface between the kernel driver and provisioners: ours have all of it, others get its defaults."""

from __future__ import annotations

import asyncio
import signal
from importlib.metadata import entry_points
from pathlib import Path

import anyio
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from kernelexec.config import load
from kernelexec.kernel import Execution, Kernel
from kernelexec.outputs import Collector
from kernelexec.provisioning import InstalledSpec, KernelexecProvisioner, LocalBackend, RuntimeDirectory
from kernelexec.provisioning.launch.kernelspec import create_provisioner
from kernelexec.provisioning.provisioner import ForeignProvisioner

BOUND = 60.0
JUPYTERS_OWN = {"kernel_provisioner": {"provisioner_name": "local-provisioner", "config": {}}}
COMMAND = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"


class ForeignPlace(LocalBackend):
    """This machine, with the provisioner of jupyter_client."""

    def build_spec(self, runtime: RuntimeDirectory, token: str, installed: InstalledSpec | None) -> KernelSpec:
        spec = super().build_spec(runtime, token, installed)
        spec.metadata = dict(JUPYTERS_OWN)
        return spec


def test_each_entry_point_of_ours_is_a_kernelexec_provisioner() -> None:
    points = [
        point for point in entry_points(group="jupyter_client.kernel_provisioners") if point.name.startswith("kernelexec-")
    ]
    classes = {point.name: point.load() for point in points}
    assert sorted(classes) == [f"kernelexec-{kind}" for kind in ("bubblewrap", "container", "fork", "local", "wrapped")]
    assert all(issubclass(found, KernelexecProvisioner) for found in classes.values())
    assert len({found.__name__ for found in classes.values()}) == len(classes)


def test_a_provisioner_of_another_package_has_the_defaults() -> None:
    provisioner = create_provisioner("id", KernelSpec(argv=["true"], metadata=JUPYTERS_OWN))
    assert isinstance(provisioner, ForeignProvisioner)
    assert isinstance(provisioner._provisioner, LocalProvisioner)
    assert (provisioner.has_process, provisioner.is_reusable, provisioner.is_oom_killed, provisioner.is_unreachable) == (
        False,
    ) * 4
    assert (provisioner.pid, provisioner.container_info, provisioner.memory_limit_bytes) == (None, None, None)
    assert not provisioner.can_reuse(provisioner.kernel_spec)
    assert asyncio.run(provisioner.read_log()) is None
    assert asyncio.run(provisioner.signal_children(signal.SIGKILL)) is False
    assert asyncio.run(provisioner.stats()).memory_bytes is None


@pytest.fixture
def kernel(short_path: Path) -> Kernel:
    config = load("local", config={"budgets": {"start": BOUND}})
    place = ForeignPlace(config, str(short_path))
    return Kernel(config, RuntimeDirectory(short_path / "1"), cwd=str(short_path), identity=b"identity", backend=place)


def test_a_kernel_of_another_packages_provisioner_runs_cells_is_interrupted_and_ends(kernel: Kernel) -> None:
    def submit(code: str) -> tuple[Execution, Collector]:
        collector = Collector(kernel._process.config.output)
        return kernel.submit(code, collector, Collector(kernel._process.config.output)), collector

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(BOUND):
                await kernel.start(tasks)
                execution, collector = submit("print(1 + 1)")
                await execution.ended.wait()
                assert collector.outputs()[0].text == "2\n"  # type: ignore[union-attr]
                assert kernel.confirms_state(execution)
                await kernel.usage.change_limits(1, 1.0)
                assert (await kernel.usage.stats()).memory_bytes is None
                execution, _ = submit(COMMAND)
                await anyio.sleep(1.0)
                await kernel.interrupter.signal_children(signal.SIGKILL)
                await execution.ended.wait()
                await kernel.stop(10.0)
        assert kernel.death is not None

    asyncio.run(main())
