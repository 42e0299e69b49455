"""The peers that run cells in a Jupyter kernel, behind one small interface: start, execute, close."""

from __future__ import annotations

import asyncio
import importlib
import tempfile
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import nbformat
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager, KernelManager
from nbclient import NotebookClient

from kernelexec import AsyncExecutor, Executor

TIMEOUT = 120.0


class Peer(Protocol):
    """One way to own sessions; ``session`` starts one more and gives what runs a cell in it, back comes the text's size."""

    async def open(self) -> None: ...

    async def session(self) -> Callable[[str], Any]: ...

    async def close(self) -> None: ...


class KernelexecAsync:
    """``AsyncExecutor``, as it comes."""

    async def open(self) -> None:
        self._stack = AsyncExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._executor = await self._stack.enter_async_context(AsyncExecutor("local", workspace=directory))

    async def session(self) -> Callable[[str], Any]:
        session = await self._executor.session(uuid.uuid4().hex[:8])

        async def execute(code: str) -> int:
            return (await session.execute(code, timeout=TIMEOUT)).total_bytes

        return execute

    async def close(self) -> None:
        await self._stack.aclose()


class KernelexecBlocking:
    """``Executor``, as it comes, called in threads."""

    async def open(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._executor = Executor("local", workspace=self._directory.name)
        await asyncio.to_thread(self._executor.__enter__)

    async def session(self) -> Callable[[str], Any]:
        session = await asyncio.to_thread(self._executor.session, uuid.uuid4().hex[:8])
        return lambda code: session.execute(code, timeout=TIMEOUT).total_bytes

    async def close(self) -> None:
        await asyncio.to_thread(self._executor.__exit__, None, None, None)
        self._directory.cleanup()


class PlainBlocking:
    """jupyter_client's own blocking client over tcp, used as its documentation shows."""

    def __init__(self) -> None:
        self._open: list[tuple[KernelManager, Any]] = []

    async def open(self) -> None: ...

    async def session(self) -> Callable[[str], Any]:
        manager, client = await asyncio.to_thread(self._start)
        self._open.append((manager, client))

        def execute(code: str) -> int:
            actual: list[int] = []
            client.execute_interactive(code, timeout=TIMEOUT, output_hook=lambda message: actual.append(size_of(message)))
            return sum(actual)

        return execute

    @staticmethod
    def _start() -> tuple[KernelManager, Any]:
        manager = KernelManager()
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT)
        return manager, client

    async def close(self) -> None:
        for manager, client in self._open:
            client.stop_channels()
            await asyncio.to_thread(manager.shutdown_kernel, now=True)


class PlainAsync:
    """jupyter_client's own async client over unix sockets."""

    def __init__(self) -> None:
        self._open: list[tuple[AsyncKernelManager, AsyncKernelClient]] = []

    async def open(self) -> None:
        self._directory = tempfile.TemporaryDirectory(dir="/tmp")

    async def session(self) -> Callable[[str], Any]:
        location = Path(self._directory.name) / uuid.uuid4().hex[:8]
        manager = AsyncKernelManager(transport="ipc", ip=str(location), connection_file=f"{location}.json")
        await manager.start_kernel()
        client = manager.client()
        client.start_channels()
        self._open.append((manager, client))
        await client.wait_for_ready(timeout=TIMEOUT)

        async def execute(code: str) -> int:
            actual: list[int] = []

            def hook(message: dict[str, Any]) -> None:
                actual.append(size_of(message))

            await client.execute_interactive(code, timeout=TIMEOUT, output_hook=hook)
            return sum(actual)

        return execute

    async def close(self) -> None:
        for manager, client in self._open:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
        self._directory.cleanup()


class Nbclient:
    """nbclient, a cell at a time in a notebook that is its own."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def open(self) -> None: ...

    async def session(self) -> Callable[[str], Any]:
        notebook = nbformat.v4.new_notebook()
        client = NotebookClient(notebook, kernel_name="python3", timeout=int(TIMEOUT), store_widget_state=False)
        await self._stack.enter_async_context(client.async_setup_kernel())

        async def execute(code: str) -> int:
            cell = nbformat.v4.new_code_cell(code)
            notebook.cells.append(cell)
            await client.async_execute_cell(cell, len(notebook.cells) - 1)
            return sum(len(output.get("text", "")) or len(output.data["text/plain"]) for output in cell.outputs)

        return execute

    async def close(self) -> None:
        await self._stack.aclose()


class Autogen:
    """autogen-ext's JupyterCodeExecutor."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    async def open(self) -> None: ...

    async def session(self) -> Callable[[str], Any]:
        from autogen_core import CancellationToken  # noqa: PLC0415 - optional, and slow to import
        from autogen_core.code_executor import CodeBlock  # noqa: PLC0415
        from autogen_ext.code_executors.jupyter import JupyterCodeExecutor  # noqa: PLC0415

        executor = JupyterCodeExecutor(timeout=int(TIMEOUT))
        await executor.start()
        self._open.append(executor)

        async def execute(code: str) -> int:
            result = await executor.execute_code_blocks([CodeBlock(code=code, language="python")], CancellationToken())
            return len(result.output)

        return execute

    async def close(self) -> None:
        for executor in self._open:
            await executor.stop()


class Ipybox:
    """ipybox's CodeExecutor: a kernel gateway for each session."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self._directory = tempfile.TemporaryDirectory()

    async def session(self) -> Callable[[str], Any]:
        from ipybox import CodeExecutor  # noqa: PLC0415 - optional, and slow to import

        location = Path(self._directory.name)
        executor = await self._stack.enter_async_context(
            CodeExecutor(working_dir=location, images_dir=location, log_level="ERROR")
        )

        async def execute(code: str) -> int:
            return len((await executor.execute(code, timeout=TIMEOUT)).text or "")

        return execute

    async def close(self) -> None:
        await self._stack.aclose()
        self._directory.cleanup()


class AG2:
    """One of AG2's executors, called in threads."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make
        self._open: list[Any] = []

    async def open(self) -> None:
        self._directory = tempfile.TemporaryDirectory()

    async def session(self) -> Callable[[str], Any]:
        from autogen.coding import CodeBlock  # noqa: PLC0415 - optional, and slow to import

        executor = await asyncio.to_thread(self._make, self._directory.name)
        self._open.append(executor)
        return lambda code: len(executor.execute_code_blocks([CodeBlock(code=code, language="python")]).output)

    async def close(self) -> None:
        for executor in self._open:
            if (manager := getattr(executor, "_kernel_manager", None)) is not None:  # it ends no kernel itself
                await asyncio.to_thread(manager.shutdown_kernel, now=True)
        self._directory.cleanup()


def embedded(directory: str) -> Any:
    """A kernel in a process of its own, through jupyter_client."""
    from autogen.coding.jupyter import EmbeddedIPythonCodeExecutor  # noqa: PLC0415 - as above

    return EmbeddedIPythonCodeExecutor(timeout=int(TIMEOUT), output_dir=directory)


def command_line(directory: str) -> Any:
    """A new interpreter for each cell: no state."""
    from autogen.coding import LocalCommandLineCodeExecutor  # noqa: PLC0415 - as above

    return LocalCommandLineCodeExecutor(timeout=int(TIMEOUT), work_dir=directory)


def size_of(message: dict[str, Any]) -> int:
    content = message["content"]
    match message["msg_type"]:
        case "stream":
            return len(content["text"])
        case "execute_result":
            return len(content["data"]["text/plain"])
    return 0


#: The first one is what the others are compared with.
PEERS: dict[str, Callable[[], Peer]] = {
    "jupyter_client, blocking, tcp": PlainBlocking,
    "jupyter_client, async, ipc": PlainAsync,
    "nbclient": Nbclient,
    "autogen-ext Jupyter": Autogen,
    "AG2 embedded IPython": partial(AG2, embedded),
    "AG2 local command line, stateless": partial(AG2, command_line),
    "ipybox": Ipybox,
    "kernelexec, blocking": KernelexecBlocking,
    "kernelexec, async": KernelexecAsync,
}
#: What of them has to be installed besides.
NEEDED = {
    "autogen-ext Jupyter": "autogen_ext",
    "AG2 embedded IPython": "autogen",
    "AG2 local command line, stateless": "autogen",
    "ipybox": "ipybox",
}
#: What cannot be installed beside us: ipybox 0.9 imports names of mcp 1, and fastmcp 4 wants mcp 2.
ALONE = frozenset({"ipybox"})


def missing() -> dict[str, str]:
    """The peers that cannot run here, and why."""
    actual = {}
    for name, module in NEEDED.items():
        try:
            importlib.import_module(module)
        except ImportError as exc:
            actual[name] = str(exc)
    return actual
