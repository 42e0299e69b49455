"""A kernel in a container: time to its first result and where it goes, time to stop, and its cells beside local ones."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from kernelexec import AsyncExecutor, AsyncSession
from kernelexec.docker.client import Engine, host
from kernelexec.kernel.startup import KernelStarter
from kernelexec.provisioning import RuntimeDirectory
from kernelexec.provisioning.container import socket_probe
from tests.support.engine import IMAGE

_CELLS = 200
STAGES = {
    "create": "the engine makes the container",
    "start": "the engine starts it",
    "ready": "the launcher imports ipykernel and serves",
    "connect": "its sockets are connected",
    "cell": "the first cell",
    "rest": "all else",
    "first": "session to first result",
    "stop": "closing the session, container removed",
}


@contextmanager
def noted(actual: dict[str, float]) -> Iterator[None]:
    """Take note of how long each stage of a start takes, in seconds."""

    def blocking(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                actual[name] = time.perf_counter() - began

        return timed

    def awaited(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(call)
        async def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return await call(*args, **kwargs)
            finally:
                actual[name] = time.perf_counter() - began

        return timed

    with (
        patch.object(Engine, "create", blocking("create", Engine.create)),
        patch.object(Engine, "start", blocking("start", Engine.start)),
        patch.object(RuntimeDirectory, "wait_ready", awaited("ready", RuntimeDirectory.wait_ready)),
        patch.object(KernelStarter, "_connect", awaited("connect", KernelStarter._connect)),
    ):
        yield


async def started(executor: AsyncExecutor, number: int) -> dict[str, float]:
    """One session from its opening to its end."""
    actual: dict[str, float] = {}
    began = time.perf_counter()
    with noted(actual):
        session = await executor.session(f"s{number}")
    opened = time.perf_counter()
    await session.execute("1+1")
    ended = time.perf_counter()
    await session.close()
    actual["stop"] = time.perf_counter() - ended
    parts = sum(actual.get(name, 0.0) for name in ("create", "start", "ready", "connect"))
    return actual | {"cell": ended - opened, "first": ended - began, "rest": opened - began - parts}


async def cell_times(sessions: dict[str, AsyncSession], cells: int) -> dict[str, list[float]]:
    """Round trips of ``1+1`` in milliseconds, one here and one there in turn."""
    actual: dict[str, list[float]] = {name: [] for name in sessions}
    for _ in range(cells):
        for name, session in sessions.items():
            began = time.perf_counter()
            await session.execute("1+1")
            actual[name].append((time.perf_counter() - began) * 1000)
    return actual


async def measure(rounds: int, cells: int) -> tuple[list[dict[str, float]], dict[str, list[float]]]:
    options = {"container": {"image": IMAGE}, "quiet": True}
    with tempfile.TemporaryDirectory() as workspaces:
        async with (
            AsyncExecutor("container", workspace=f"{workspaces}/there", config=options) as contained,
            AsyncExecutor("local", workspace=f"{workspaces}/here") as local,
        ):
            starts = [await started(contained, number) for number in range(rounds + 1)][1:]  # the first one warms the engine
            sessions = {"container": await contained.session("cells"), "local": await local.session("cells")}
            with patch.dict(socket_probe._reachable, {host(): False}):
                sessions["container over a relay"] = await contained.session("relayed")
            return starts, await cell_times(sessions, cells)


def show_containers(rounds: int, cells: int = _CELLS) -> dict[str, Any]:
    starts, times = asyncio.run(measure(rounds, cells))
    table = Table(title=f"a container's kernel, image {IMAGE}: medians of {rounds}, in ms")
    table.add_column("stage")
    table.add_column("ms", justify="right")
    for name, title in STAGES.items():
        table.add_row(title, f"{statistics.median(start.get(name, 0.0) for start in starts) * 1000:.1f}")
    middles = {name: statistics.median(actual) for name, actual in times.items()}
    for name, middle in middles.items():
        table.add_row(f"a cell, {name}, p50 of {cells}", f"{middle:.2f}")
    table.add_row("ratio container / local", f"{middles['container'] / middles['local']:.2f}")
    table.add_row("a relay more", f"{middles['container over a relay'] - middles['container']:+.2f}")
    Console(width=120).print(table)
    return {"stages, s": starts, "cells, ms": times}
