"""The engine of this machine at a TCP address, as a remote one is reached: unix sockets of its containers are not used then."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from kernelexec.docker.client import host, socket_at

_PIECE_BYTES = 64 * 1024


class RemoteEngine:
    """A server that carries connections to the engine's socket; ``cut`` ends the open ones, as a restarted engine does."""

    def __init__(self, engine_socket: str) -> None:
        self._engine_socket = engine_socket
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_serving = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="remote engine", daemon=True)
        self._thread.start()
        self._is_serving.wait()

    async def _serve(self) -> None:
        self._loop, self._is_over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._is_serving.set()
        await self._is_over.wait()
        server.close()
        self._abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._engine_socket)
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                self._writers.discard(each)
                each.close()

    def cut(self) -> None:
        """End all open connections."""
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    def close(self) -> None:
        """End the server."""
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@contextmanager
def remote_engine() -> Iterator[RemoteEngine]:
    """Have ``DOCKER_HOST`` name the engine at a TCP address."""
    path = socket_at(host())
    assert path is not None
    engine = RemoteEngine(path)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "DOCKER_HOST", engine.address)
            yield engine
    finally:
        engine.close()
