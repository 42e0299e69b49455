"""Kernels of stock ipykernel, to which ours are compared: one cell after another, or a notebook by nbclient."""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient

_BOUND = 60.0
#: With it ipykernel captures no output of programs.
_PYTEST = "PYTEST_CURRENT_TEST"


@contextmanager
def own_sockets() -> Iterator[dict[str, Any]]:
    """Arguments of a manager for sockets in a directory. A port that it chooses may be another's before the kernel has it."""
    with tempfile.TemporaryDirectory() as directory:
        yield {"transport": "ipc", "ip": f"{directory}/kernel", "connection_file": f"{directory}/kernel.json"}


def run_by_nbclient(notebook: Any, directory: Path | None = None, **options: Any) -> None:
    """Execute a notebook with nbclient, whose options these are."""
    with own_sockets() as arguments:
        client = NotebookClient(notebook, km=AsyncKernelManager(**arguments), **options)
        client.execute(cwd=directory, cleanup_kc=True)


class StockKernel:
    """Runs cells one after another."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self.texts: defaultdict[str, str] = defaultdict(str)
        """The text of each cell, by its label."""
        self._labels: dict[str, str] = {}

    def run(self, code: str, label: str = "", patience: float = 0.0, is_enough: Callable[[], bool] = lambda: False) -> str:
        """Run a cell and wait for its end and ``patience`` seconds more, unless its text is enough before; return that."""
        msg_id = self._client.execute(code)
        self._labels[msg_id] = label
        if not label:
            self.texts.pop(label, None)
        self._read(_BOUND, msg_id)
        self._read(patience, is_enough=is_enough)
        return self.texts[label]

    def _read(self, seconds: float, until_idle: str | None = None, is_enough: Callable[[], bool] = lambda: False) -> None:
        deadline = time.monotonic() + seconds
        while not is_enough() and (left := deadline - time.monotonic()) > 0:
            try:
                message = self._client.get_iopub_msg(timeout=left)
            except Empty:
                return
            msg_id, content = message["parent_header"].get("msg_id"), message["content"]
            if msg_id == until_idle and content.get("execution_state") == "idle":
                return
            self.texts[self._labels.get(msg_id, "?")] += _text_of(message["msg_type"], content)


def _text_of(msg_type: str, content: Any) -> str:
    if msg_type == "stream":
        return str(content["text"])
    if msg_type == "error":
        return "\n".join([*content["traceback"], ""])
    return f"{content['data'].get('text/plain', '')}\n" if "data" in content else ""


@contextmanager
def stock_kernel(cwd: str | None = None) -> Iterator[StockKernel]:
    """Start ipykernel itself with this interpreter, until the end of the block."""
    with own_sockets() as arguments:
        manager = KernelManager(**arguments)
        manager._kernel_spec = KernelSpec(resource_dir=RESOURCES, **get_kernel_dict())
        manager.start_kernel(cwd=cwd, env={name: value for name, value in os.environ.items() if name != _PYTEST})
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=_BOUND)
            yield StockKernel(client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
