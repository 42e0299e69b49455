"""Jupyter's own directories in a private place, with kernelspecs of ours installed there: what the user has does not count."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from kernelexec.docker.client import ContainerStatus, Engine
from kernelexec.docker.labels import CLIENT, ROOT
from kernelexec.provisioning.jupyter import install_spec
from tests.conftest import KINDS

BOUND = 120.0
IMAGE = str(KINDS["container"]["container"]["image"])  # type: ignore[index]
#: One kernelspec for every way that a kernel can be had.
SPECS = {"container": "boxed", "local": "unboxed"}


@contextmanager
def jupyter_place(directory: Path) -> Iterator[Path]:
    """The environment of a Jupyter of its own, until the end of the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(directory / "share" / "jupyter"))
        patch.setenv("IPYTHONDIR", str(directory / "ipython"))
        for name in ("CONFIG", "DATA", "RUNTIME"):
            (directory / name.lower()).mkdir()
            patch.setenv(f"JUPYTER_{name}_DIR", str(directory / name.lower()))
        for isolation, name in SPECS.items():
            container = {"image": IMAGE} if isolation == "container" else {}
            install_spec(name, f"Python ({isolation})", isolation=isolation, container=container, prefix=directory)
        yield directory


@contextmanager
def kernel_of(name: str, cwd: Path, **more: object) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel of a stock manager, and a client of it."""
    manager = KernelManager(kernel_name=name)
    manager.start_kernel(cwd=str(cwd), **more)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=BOUND)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def text_of(client: BlockingKernelClient, code: str, typed: str | None = None) -> str:
    """What a cell prints, or the name of the exception that it ends with; ``typed`` is what it is given to read."""
    actual = []

    def hear(message: dict[str, dict[str, str]]) -> None:
        content = message["content"]
        actual.append(content.get("text") or content.get("ename") or "")

    def answer(_message: object) -> None:
        client.input(str(typed))

    client.execute_interactive(
        code, output_hook=hear, stdin_hook=answer, allow_stdin=typed is not None, timeout=BOUND, stop_on_error=True
    )
    return "".join(actual)


def containers() -> list[ContainerStatus]:
    """The containers of kernels that Jupyter started from this test run."""
    directory = os.environ["KERNELEXEC_RUNTIME_DIR"]
    with Engine() as engine:
        own = [item for item in engine.list_containers(CLIENT) if item.labels[ROOT].startswith(f"{directory}/")]
        return [engine.inspect_container(item.id) for item in own]


def comes_true(condition: Callable[[], bool]) -> bool:
    """Whether it does, within a generous time."""
    deadline = time.monotonic() + BOUND
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
