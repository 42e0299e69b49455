"""This side of the fork server: a process that has imported what kernels need, and forks them in some tens of milliseconds."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import anyio

from kernelexec.launcher import protocol
from kernelexec.provisioning import platform
from kernelexec.provisioning.launch.kernelspec import LAUNCHER
from kernelexec.provisioning.provisioners.adopted import AdoptedProcess
from kernelexec.provisioning.runtime.owned_directory import hold, let_go
from kernelexec.provisioning.runtime.processes import Mark

_MESSAGE_BYTES = 64 * 1024
#: How long the word of a kernel's end is waited for, once it has ended, in seconds.
_WORD_SECONDS = 1.0
#: How long is waited, once a server was ended, for those that it forked to say so, in seconds.
_LATE_SECONDS = 5.0


class NoForkServer(Exception):
    """It has ended, or cannot fork: kernels are started as new processes."""


class ForkedProcess(AdoptedProcess):
    """A kernel that a fork server has forked: who waits for it is the server, which tells how it ended."""

    def __init__(self, pid: int, fd: int, told: asyncio.Future[int]) -> None:
        super().__init__(pid, fd)
        self._told = told

    def poll(self) -> int | None:
        """Its exit status, as far as it is known, once it has ended; else None."""
        found = super().poll()
        return self._told.result() if found is not None and self._told.done() and not self._told.cancelled() else found

    async def hear(self) -> None:
        """Wait, a while, for the server's word on how it ended."""
        with anyio.move_on_after(_WORD_SECONDS):
            await asyncio.wait([self._told])


class ForkServer:
    """One process of an interpreter. What it is asked before it serves waits; its end fails what waits."""

    def __init__(self, python: str, environ: Mapping[str, str], modules: Sequence[str], stderr: Path) -> None:
        self.environ = dict(environ)
        self.imported: dict[str, str | None] = {}
        """The modules that it has imported, or tried to: why that failed, or None."""
        self.threaded: str | None = None
        """The module that has threads, which ended it: they do not survive a fork."""
        self._why: NoForkServer | None = None
        """Why it is asked no more; those that it has forked may still say so."""
        self._mark = Mark()
        self._born: dict[int, asyncio.Future[int]] = {}
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._number = 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, stderr.open("ab") as complaints:
            try:
                self._process = subprocess.Popen(
                    [python, str(LAUNCHER), protocol.FORKSERVER_FLAG, str(theirs.fileno()), *modules],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    cwd="/",
                    env={**environ, **self._mark.environ},
                    pass_fds=[theirs.fileno()],
                    **platform.HERE.apart,
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)  # noqa: FBT003 - the library's own signature
        hold(ours.fileno())
        self._channel: socket.socket | None = ours
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ours, self._read)
        self.serves: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._channel is not None and self._why is None

    @property
    def serving(self) -> bool:
        """Whether it forks kernels."""
        return self.alive and self.serves.done() and self.serves.exception() is None

    async def fork(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: str, stderr: IO[bytes]) -> ForkedProcess:
        """A new kernel.

        Raises:
            NoForkServer: it has ended, or cannot fork. No process has come of it.
        """
        if self._channel is None or self._why is not None:
            raise self._why or NoForkServer("it has ended")
        self._number += 1
        number, asked = self._number, self._loop.create_future()
        self._asked[number] = asked
        told = os.memfd_create("kernelexec", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(told), "wb") as file:
                file.write(json.dumps(protocol.fork_content(arguments, environ, cwd)).encode())
            os.lseek(told, 0, os.SEEK_SET)
            socket.send_fds(self._channel, [json.dumps({"request": number}).encode()], [told, stderr.fileno()])
            return await asyncio.shield(asked)
        except OSError as exc:
            raise NoForkServer(str(exc)) from exc
        except asyncio.CancelledError:
            asked.add_done_callback(_unwanted)
            raise
        finally:
            os.close(told)
            if asked.done():
                self._asked.pop(number, None)

    async def stop(self) -> None:
        """End it. Kernels that it has forked go on: who started one ends it."""
        self._why = self._why or NoForkServer("it was stopped")
        with suppress(OSError):
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await asyncio.to_thread(self._process.wait)
            with anyio.move_on_after(_LATE_SECONDS):
                await self._over.wait()
        self._close()

    def _read(self) -> None:
        assert self._channel is not None
        try:
            said, fds, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 1)
        except (BlockingIOError, InterruptedError, ConnectionResetError):
            return  # one that left requests unread is gone: the system says that first, then what it had said, then the end
        except OSError:
            said, fds = b"", []
        if not said:
            self._close()
            return
        self._hear(json.loads(said), fds)

    def _hear(self, said: dict[str, Any], fds: list[int]) -> None:
        if said.get("serves"):
            self.serves.set_result(None)
        elif "serves" in said:
            self._why = NoForkServer("it has threads")
        elif "imported" in said:
            self._note(said)
        elif "ended" in said:
            if (told := self._born.pop(said["request"], None)) is not None:
                told.set_result(said["ended"])
            elif (unborn := self._asked.pop(said["request"], None)) is not None:
                unborn.set_exception(NoForkServer("what it forked ended before it could say so"))
        elif (asked := self._asked.pop(said["request"], None)) is not None:
            if "failed" in said:
                asked.set_exception(NoForkServer(said["failed"]))
                return
            told = self._born[said["request"]] = self._loop.create_future()
            asked.set_result(ForkedProcess(said["pid"], fds[0], told))

    def _note(self, said: dict[str, Any]) -> None:
        name = said["imported"]
        self.imported[name] = said.get("failed")
        if said["threads"] != 1:
            self.threaded = name
            self._why = NoForkServer(f"it has {said['threads']} threads since it has imported {name}")

    def _close(self) -> None:
        """Nobody is left who could say anything: what was asked for and has not come, comes no more."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        self._over.set()
        why = self._why or NoForkServer("it has ended")
        self._loop.remove_reader(channel)
        let_go(channel.detach())
        waiting: list[asyncio.Future[Any]] = [self.serves, *self._asked.values()]
        for asked in waiting:
            if not asked.done():
                asked.set_exception(why)
                asked.exception()  # it may be that nobody waits
        self._asked.clear()
        for told in self._born.values():
            told.cancel()
        self._born.clear()


def _unwanted(asked: asyncio.Future[ForkedProcess]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        asked.result().kill()
        asked.result().close()
