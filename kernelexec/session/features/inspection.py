"""What a session's caller can see of it between and beside cells: its variables, and what its kernel knows of a name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import anyio

from kernelexec import cells
from kernelexec.config import Config, seconds
from kernelexec.errors import InvalidRequest, KernelNotAnswering
from kernelexec.kernel import Kernel
from kernelexec.launcher import protocol
from kernelexec.results import CodeStatus, Completion, PythonEnvironment, Variables
from kernelexec.results.variables import VARIABLES_MAX
from kernelexec.session.behind import Behind
from kernelexec.session.cells.queue import Queue
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import Life
from kernelexec.text import clean_text, cut_middle

#: How long a look waits for the kernel's answer, in seconds.
LOOK_SECONDS = 4.0
_INSPECTION_BYTES = 64 * 1024
_INDENT_MAX = 1000
_BUSY = "the kernel may hold the interpreter's lock in C code, or what it was asked about takes too long"


class Lookout(Behind):
    """The part of a session that only looks. Whoever derives from it gives it its life, its queue and its keeper.

    No look starts a kernel: where none lives there is nothing to be seen, and ``KernelNotAnswering`` says so.
    """

    name: str
    life: Life
    _config: Config
    _keeper: Keeper
    _queue: Queue

    @property
    def connection_file(self) -> Path | None:
        """The connection file of the living kernel, by which any Jupyter client can attach to it; None while there is none.

        A new kernel has another one. Whoever can read it has the kernel: it is private to this user.
        """
        kernel = self._keeper.kernel
        return kernel.connection_file if kernel is not None and kernel.alive else None

    async def variables(
        self, *, names: Iterable[str] | None = None, limit: int = VARIABLES_MAX, wait: float = LOOK_SECONDS
    ) -> Variables:
        """The user's variables, also while a cell runs; no code of the user's runs for it.

        Args:
            names: only these, as far as they exist; all by default.
            limit: how many at most, in the order of their names; 1000 is the most.
            wait: seconds that this call blocks at most.

        Raises:
            InvalidRequest, InvalidTimeout, Closed: before anything was asked.
            KernelNotAnswering: no kernel lives, or it does not answer in time.
        """
        patience = seconds(wait, "wait")
        content: dict[str, Any] = {"names": _checked(names), "limit": _limit(limit)}
        said = await self._ask("control", protocol.VARIABLES_REQUEST, content, patience)
        return Variables.of(said, limit)

    async def environment(self, *, wait: float = LOOK_SECONDS) -> PythonEnvironment:
        """Which Python, packages and programs the session's cells find, also while one runs; no code of the user's runs for it.

        Raises:
            InvalidTimeout, Closed: before anything was asked.
            KernelNotAnswering: see ``variables``.
        """
        said = await self._ask("control", protocol.ENVIRONMENT_REQUEST, {}, seconds(wait, "wait"))
        return PythonEnvironment.of(said)

    async def complete(self, code: str, cursor: int | None = None, *, wait: float = LOOK_SECONDS) -> Completion:
        """What the kernel would put at ``cursor`` (in characters, the end by default). It waits behind a running cell.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, Closed: before anything was asked.
            KernelNotAnswering: no kernel lives, or it, or the running cell, does not come to it in ``wait`` seconds.
        """
        position = self._position(code, cursor)
        said = await self._ask_idle("complete_request", {"code": code, "cursor_pos": position}, wait)
        return Completion.of(said, code, position)

    async def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0, wait: float = LOOK_SECONDS) -> str | None:
        """What the kernel knows of the name at ``cursor``, as text; with ``detail=1`` its source too. None if it knows none.

        Raises:
            InvalidCode, InvalidRequest, InvalidTimeout, Closed: before anything was asked.
            KernelNotAnswering: see ``complete``.
        """
        if detail not in (0, 1):
            message = f"detail={detail!r}: it is 0, or 1 for the source too."
            raise InvalidRequest(message)
        content = {"code": code, "cursor_pos": self._position(code, cursor), "detail_level": int(detail)}
        said = await self._ask_idle("inspect_request", content, wait)
        bundle = said.get("data")
        text = bundle.get("text/plain") if isinstance(bundle, dict) else None
        return cut_middle(clean_text(text), _INSPECTION_BYTES) if said.get("found") is True and isinstance(text, str) else None

    async def is_complete(self, code: str, *, wait: float = LOOK_SECONDS) -> tuple[CodeStatus, str]:
        """Whether code could be run as it stands, and where it is incomplete the indentation of the line to come.

        Raises:
            InvalidCode, InvalidTimeout, Closed: before anything was asked.
            KernelNotAnswering: see ``complete``.
        """
        self._position(code, None)
        said = await self._ask_idle("is_complete_request", {"code": code}, wait)
        status, indent = said.get("status"), said.get("indent")
        blank = isinstance(indent, str) and len(indent) <= _INDENT_MAX and not indent.strip()
        return next((known for known in get_args(CodeStatus) if known == status), "unknown"), str(indent) if blank else ""

    def _position(self, code: object, cursor: object) -> int:
        if code != "":
            cells.check(code, limit_bytes=self._config.capacity.code_bytes, what="stdin" if _is_blank(code) else "code")
        length = len(str(code))
        if cursor is None:
            return length
        if isinstance(cursor, bool) or not isinstance(cursor, int) or not 0 <= cursor <= length:
            message = f"cursor={cursor!r}: it is a position in the code, from 0 to {length}."
            raise InvalidRequest(message)
        return cursor

    async def _ask_idle(self, msg_type: str, content: dict[str, Any], wait: float) -> dict[str, Any]:
        """Ask where cells run. While one runs nothing is sent, so that no questions pile up in a busy kernel."""
        patience = seconds(wait, "wait")
        end = anyio.current_time() + patience
        self._living()
        with anyio.move_on_after(patience):
            while self._queue.first is not None:
                await self._queue.first.done.wait()
        if self._queue.first is not None:
            message = f"Session {self.name!r} is busy: a cell runs, and nobody is asked before it ends."
            raise KernelNotAnswering(message)
        return await self._ask("shell", msg_type, content, max(0.0, end - anyio.current_time()))

    async def _ask(self, channel: str, msg_type: str, content: dict[str, Any], patience: float) -> dict[str, Any]:
        kernel = self._living()
        await self._caught_up()
        said = await kernel.ask(channel, msg_type, content, patience=patience)
        if said is None:
            self._living()
            message = f"The kernel of session {self.name!r} did not answer in time: {_BUSY}."
            raise KernelNotAnswering(message)
        return said

    def _living(self) -> Kernel:
        self.life.check_open()
        kernel = self._keeper.kernel
        if kernel is None or not kernel.alive:
            message = f"Session {self.name!r} has no living kernel: its state is gone, and the next cell starts a new one."
            raise KernelNotAnswering(message)
        return kernel


def _is_blank(code: object) -> bool:
    return isinstance(code, str) and not code.strip()


def _checked(names: object) -> list[str] | None:
    if names is None:
        return None
    found = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else None
    if found is None or len(found) > VARIABLES_MAX or not all(isinstance(name, str) for name in found):
        message = f"names={names!r:.200}: it is a list of names, {VARIABLES_MAX} at most."
        raise InvalidRequest(message)
    return [clean_text(name) for name in found]


def _limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= VARIABLES_MAX:
        message = f"limit={limit!r}: it is a number of variables, from 1 to {VARIABLES_MAX}."
        raise InvalidRequest(message)
    return limit
