"""The kernels of one session: Python's, and one for each other language, started by the first cell in that language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio

from kernelexec import cells
from kernelexec.cells import Cell, CodeCell
from kernelexec.config import Config
from kernelexec.errors import EngineFailed, InvalidRequest, LimitRefused, nearest
from kernelexec.events import KernelChanged, MemoryHigh
from kernelexec.kernel import Execution
from kernelexec.provisioning import InstalledSpec, Place
from kernelexec.provisioning.runtime.discovery import note_language
from kernelexec.session.kernels.lost_state import WITH_OWNER
from kernelexec.session.kernels.supervisor import Keeper
from kernelexec.session.lifecycle import Life

_ALIASES = {"py": "python", "js": "javascript", "node": "javascript", "ts": "typescript", "sh": "bash"}


class Kernels:
    """The supervisors of a session's kernels, by language."""

    def __init__(
        self,
        config: Config,
        session: str,
        runtime: Path,
        place: Place,
        life: Life,
        tell: Callable[[KernelChanged | MemoryHigh], None],
    ) -> None:
        self.order = anyio.Lock(fast_acquire=True)
        """Held while a language gets its supervisor, and while limits change: a new one has the same limits."""
        self.installing = anyio.Lock(fast_acquire=True)
        """Held while packages are installed."""
        self._place = place
        self._make = partial(Keeper, config=config, session=session, cwd=place.cwd, life=life, tell=tell, place=place)
        self.python = self._make(runtime=runtime)
        self.ended: Mapping[str, int] = {}
        """The newest epochs of the kernels of other languages that ended with the session's previous owner."""
        self._of = {"python": self.python}
        self._names = {"python": "python"}
        self._runtime = runtime
        self._limit = config.capacity.code_bytes

    @property
    def place(self) -> Place:
        """The backend of the kernels."""
        return self._place

    async def cell(self, code: str, language: object, stdin: str | None) -> Cell:
        """Return the cell of a text: code of Python or of an installed kernel, a shell command, or a command of node.

        Raises:
            InvalidCode: see ``cells.check``.
            InvalidRequest: the language is unknown, or ``stdin`` is given for a cell that is no command.
            KernelStartFailed: the kernels of the image cannot be listed.
        """
        async with self.order:  # a cell that waits for the list of kernels is not overtaken
            known = await self._label(language)
        if known is None and _canonical(language) == "bash":
            return cells.command(code, work_dir=None, stdin=stdin, limit_bytes=self._limit)
        if known is None:
            return cells.node(code, stdin=stdin, limit_bytes=self._limit)
        if stdin is not None:
            message = (
                f"stdin is for commands and node: a cell of the {known} kernel has none. Use execute_command, or set a value."
            )
            raise InvalidRequest(message)
        if known == "python":
            return cells.parse(code, limit_bytes=self._limit)
        cells.check(code, limit_bytes=self._limit)
        return CodeCell(code, known)

    def of(self, cell: Cell) -> Keeper:
        """Return the supervisor of a cell's kernel."""
        return self._of[cell.kernel]

    def chosen(self, language: object) -> tuple[Keeper, ...]:
        """Return the supervisor of a language's kernel, or all of them for None.

        Raises:
            InvalidRequest: the session has no kernel of that language.
        """
        if language is None:
            return tuple(self._of.values())
        label = self._names.get(_canonical(language))
        if label is None:
            has = ", ".join(self._of)
            message = f"This session has no kernel of language={language!r}{nearest(str(language), self._of)}: it has {has}."
            raise InvalidRequest(message)
        return (self._of[label],)

    async def limit(self, config: Config, memory_bytes: int | None, cpus: float | None) -> tuple[str, ...]:
        """Apply the configured limits to all kernels, present and future; return the limits that do not apply, as notes.

        ``order`` is held.

        Raises:
            LimitRefused, EngineFailed: one kernel cannot be limited; nothing changed.
        """
        place, before, changed = self._place.limited(config), self._place, list[Keeper]()
        if place is None:
            wanted = {"memory_bytes": memory_bytes, "cpus": cpus}
            return tuple(_not_here(name, value) for name, value in wanted.items() if value is not None)
        try:
            for keeper in self._of.values():
                await keeper.limit(place, memory_bytes, cpus)
                changed.append(keeper)
        except (LimitRefused, EngineFailed):
            for keeper in changed:
                await keeper.limit(before, before.memory_bytes, before.cpus)
            raise
        self._place, self._make = place, partial(self._make, place=place)
        return ()

    def take_late(self) -> list[Execution]:
        """Return the ended executions that have had output since the last call."""
        living = [keeper.kernel for keeper in self._of.values() if keeper.kernel is not None]
        return [execution for kernel in living for execution in kernel.client.take_late()]

    @property
    def culled(self) -> bool:
        """Whether no kernel lives, and idle ones were ended."""
        return any(keeper.culled for keeper in self._of.values()) and not any(keeper.kernel for keeper in self._of.values())

    async def cull(self, idle: Callable[[], bool]) -> list[int]:
        """End the living kernels if the session is still ``idle`` once no cell can begin; return their epochs."""
        return [keeper.epoch for keeper in self._of.values() if await keeper.cull(idle)]

    async def stop(self, patience: float) -> None:
        """End all kernels for good, concurrently, with ``patience`` seconds for a polite shutdown."""
        async with anyio.create_task_group() as group:
            for keeper in self._of.values():
                group.start_soon(keeper.stop, patience)

    async def _label(self, language: object) -> str | None:
        """Return the label of a language's kernel; None for bash and JavaScript without a kernel, which are commands."""
        wanted = _canonical(language)
        if wanted in self._names:
            return self._names[wanted]
        installed = await self._place.installed()
        spec = installed.find(wanted)
        if spec is None and wanted in ("bash", "javascript"):
            return None
        if spec is None:
            here = ("python", "bash", "javascript", *(word.strip("()") for entry in installed.told() for word in entry.split()))
            message = (
                f"language={language!r} is not known here{nearest(wanted, here)}: there are python, bash and javascript, "
                f"and the kernelspecs {self._place.specs_where}: {', '.join(installed.told()) or 'none'}. "
                "`jupyter kernelspec list` there shows where they are."
            )
            raise InvalidRequest(message)
        if spec.label not in self._of:
            self._of[spec.label] = self._supervisor(spec)
        self._names[wanted] = spec.label
        return spec.label

    def _supervisor(self, spec: InstalledSpec) -> Keeper:
        directory = self._runtime / f"k{len(self._of)}"
        directory.mkdir(mode=0o700)
        with suppress(OSError):  # on a full disk a later owner does not report its loss
            note_language(directory, spec.label)
        keeper = self._make(runtime=directory, installed=spec)
        if (epoch := self.ended.get(spec.label)) is not None:
            keeper.epoch, keeper.loss = epoch, WITH_OWNER
        return keeper


def _not_here(name: str, value: float) -> str:
    return f"{name}={value} is not in force: a kernel on this machine has no such limit of its own. Containers have."


def _canonical(language: object) -> str:
    if not isinstance(language, str):
        message = f"language={language!r}: must be a name such as 'python', not {type(language).__name__}."
        raise InvalidRequest(message)
    name = language.strip().lower()
    return _ALIASES.get(name, name)
