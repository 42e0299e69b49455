"""The kernels of a session: the Python kernel, and a kernel for each other language, started by the language's first cell."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from kernelexec import cells
from kernelexec.cells import Cell, CodeCell
from kernelexec.config import Config
from kernelexec.errors import EngineFailed, InvalidRequest, LimitRefused, did_you_mean
from kernelexec.events import KernelEvent
from kernelexec.provisioning import Backend, InstalledSpec
from kernelexec.provisioning.runtime.discovery import write_language_file
from kernelexec.session.kernels.supervisor import KernelSupervisor
from kernelexec.session.kernels.verdict import LOST_WITH_OWNER
from kernelexec.session.lifecycle import TaskScope

logger = logging.getLogger("kernelexec")
#: How long a kernel between two cells may take to describe itself.
_INFO_SECONDS = 5.0
#: Names of the session's own kernel. A name with a minor version may belong to another kernelspec.
_PYTHON = re.compile(r"(?:i?python|py)[ -]?3?(?: ?\(ipykernel\))?|ipykernel|jupyter")
_ALIASES = {"js": "javascript", "node": "javascript", "nodejs": "javascript", "ts": "typescript", "sh": "bash", "shell": "bash"}


class LanguageKernels:
    """The supervisors of a session's kernels, by language."""

    def __init__(
        self,
        config: Config,
        session: str,
        runtime: Path,
        backend: Backend,
        scope: TaskScope,
        dispatch: Callable[[KernelEvent], None],
    ) -> None:
        self.languages_lock = anyio.Lock(fast_acquire=True)
        """The lock for new supervisors and for changes of limits. New kernels thus get the current limits."""
        self.install_lock = anyio.Lock(fast_acquire=True)
        """The lock for installations of packages."""
        self.backend = backend
        self._make_supervisor = partial(
            KernelSupervisor, config=config, session=session, cwd=backend.cwd, scope=scope, dispatch=dispatch, backend=backend
        )
        self.python = self._make_supervisor(runtime=runtime)
        self.ended_epochs: Mapping[str, int] = {}
        """The last epoch of each other language's kernel under the session's previous owner."""
        self._supervisors = {"python": self.python}
        self._labels = {"python": "python"}
        self._session, self._runtime = session, runtime
        self._limit = config.capacity.code_bytes

    async def make_cell(self, code: str, language: object, stdin: str | None) -> Cell:
        """Return the cell for a source text; raise ``InvalidRequest`` for an unknown language, or ``stdin`` of a code cell."""
        async with self.languages_lock:  # a later cell must not overtake a cell that waits for the list of kernelspecs
            label = await self._resolve_label(language)
        if label is None and normalize_language(language) == "bash":
            return cells.make_command_cell(code, work_dir=None, stdin=stdin, limit_bytes=self._limit)
        if label is None:
            return cells.make_node_cell(code, stdin=stdin, limit_bytes=self._limit)
        if stdin is not None:
            raise InvalidRequest(
                f"stdin is for commands and node: a cell of the {label} kernel has none. Use execute_command, or set a value."
            )
        if label == "python":
            return cells.parse(code, limit_bytes=self._limit)
        cells.check(code, limit_bytes=self._limit)
        return CodeCell(code, label)

    def get_supervisor(self, cell: Cell) -> KernelSupervisor:
        """Return the supervisor of a cell's kernel."""
        return self._supervisors[cell.kernel]

    def select_supervisors(self, language: object) -> tuple[KernelSupervisor, ...]:
        """Return the supervisor of a language's kernel, or all for None. An unknown language raises ``InvalidRequest``."""
        if language is None:
            return tuple(self._supervisors.values())
        label = self._labels.get(normalize_language(language))
        if label is None:
            languages = ", ".join(self._supervisors)
            near = did_you_mean(str(language), self._supervisors)
            raise InvalidRequest(f"This session has no kernel of language={language!r}{near}: it has {languages}.")
        return (self._supervisors[label],)

    async def check_kernelspec(self, name: str) -> None:
        """Raise ``InvalidRequest`` if no kernelspec with this name or language is installed."""
        installed = await self.backend.list_kernelspecs()
        if installed.find(name) is None and installed.find(name.lower()) is None:
            known = ", ".join(installed.describe()) or "none"
            raise InvalidRequest(
                f"The kernelspec {name!r:.100} is not installed. The kernelspecs {self.backend.kernelspec_location}: {known}."
                " Install its kernel, or choose another kernelspec in the notebook's metadata."
            )

    async def read_language_info(self, language: str = "python") -> dict[str, Any]:
        """Return the ``language_info`` of a language's kernel, as in Jupyter's messages; empty without a kernel."""
        supervisor = self._supervisors.get(self._labels.get(normalize_language(language), ""))
        if supervisor is None or supervisor.kernel is None:
            return {}
        reply = await supervisor.kernel.client.request("shell", "kernel_info_request", {}, patience=_INFO_SECONDS)
        info = reply.get("language_info") if reply is not None else None
        return info if isinstance(info, dict) else {}

    async def apply_limits(self, config: Config, memory_bytes: int | None, cpus: float | None) -> tuple[str, ...]:
        """Apply the configured limits to all present and future kernels; return notes about inapplicable limits.

        The caller must hold ``languages_lock``. If a kernel cannot be limited, an error is raised, and nothing has changed.
        """
        backend, before, changed = self.backend.with_limits(config), self.backend, list[KernelSupervisor]()
        if backend is None:
            wanted = {"memory_bytes": memory_bytes, "cpus": cpus}
            return tuple(
                f"{name}={value} does not apply: kernels on this machine have no such limit, only kernels in containers."
                for name, value in wanted.items()
                if value is not None
            )
        try:
            for supervisor in self._supervisors.values():
                await supervisor.apply_limits(backend, memory_bytes, cpus)
                changed.append(supervisor)
        except (LimitRefused, EngineFailed):
            for supervisor in changed:
                try:
                    await supervisor.apply_limits(before, before.memory_bytes, before.cpus)
                except (LimitRefused, EngineFailed):  # the caller gets the first error, and the other kernels their old limits
                    logger.exception("kernelexec.limits_not_reset", extra={"session": self._session})
            raise
        self.backend, self._make_supervisor = backend, partial(self._make_supervisor, backend=backend)
        return ()

    @property
    def last_visit(self) -> float:
        """The time, on the monotonic clock, of another client's last cell in a living kernel; 0 without such a cell."""
        kernels = [supervisor.kernel for supervisor in self._supervisors.values()]
        return max(kernel.client.last_visit if kernel is not None and kernel.alive else 0.0 for kernel in kernels)

    @property
    def has_culled_kernels(self) -> bool:
        """Whether no kernel lives, and at least one kernel was ended for idleness."""
        supervisors = self._supervisors.values()
        lost_states = [supervisor.losses.lost_state for supervisor in supervisors if supervisor.losses.lost_state is not None]
        has_kernel = any(supervisor.kernel is not None for supervisor in supervisors)
        return not has_kernel and any(lost_state.cause == "culled" for lost_state in lost_states)

    async def cull(self, is_idle: Callable[[], bool]) -> list[int]:
        """End the living kernels if ``is_idle`` returns true under their locks; return their epochs."""
        return [supervisor.epoch for supervisor in self._supervisors.values() if await supervisor.cull(is_idle)]

    @property
    def cut(self) -> tuple[str, ...]:
        """The languages of the kernels killed at the end; see ``SessionClosed``."""
        return tuple(language for language, supervisor in self._supervisors.items() if supervisor.is_cut)

    async def stop(self, patience: float) -> None:
        """End all kernels for good, concurrently, with ``patience`` seconds for a clean shutdown."""
        async with anyio.create_task_group() as group:
            for supervisor in self._supervisors.values():
                group.start_soon(supervisor.stop, patience)

    async def _resolve_label(self, language: object) -> str | None:
        """Return the label of a language's kernel; None for bash and JavaScript commands. These need no kernel."""
        wanted = normalize_language(language)
        if wanted in self._labels:
            return self._labels[wanted]
        installed = await self.backend.list_kernelspecs()
        spec = installed.find(wanted)  # first: an installed kernelspec of bash or JavaScript takes the place of commands
        if spec is None and wanted in ("bash", "javascript"):
            return None
        if spec is None:
            words = (word.strip("()") for entry in installed.describe() for word in entry.split())
            near = did_you_mean(wanted, ("python", "bash", "javascript", *words))
            raise InvalidRequest(
                f"language={language!r} is not known here{near}: there are python, bash and "
                f"javascript, and the kernelspecs {self.backend.kernelspec_location}: "
                f"{', '.join(installed.describe()) or 'none'}. "
                "`jupyter kernelspec list` there shows where they are."
            )
        if spec.label not in self._supervisors:
            self._supervisors[spec.label] = self._add_supervisor(spec)
        self._labels[wanted] = spec.label
        return spec.label

    def _add_supervisor(self, spec: InstalledSpec) -> KernelSupervisor:
        directory = self._runtime / f"k{len(self._supervisors)}"
        directory.mkdir(mode=0o700)
        with suppress(OSError):  # without the file, as on a full disk, a later owner does not report the lost state
            write_language_file(directory, spec.label)
        supervisor = self._make_supervisor(runtime=directory, installed=spec)
        if (epoch := self.ended_epochs.get(spec.label)) is not None:
            supervisor.epoch, supervisor.losses.lost_state = epoch, LOST_WITH_OWNER
        return supervisor


def normalize_language(language: object) -> str:
    """Return the usual name of a language, in lower case."""
    if not isinstance(language, str):
        raise InvalidRequest(f"language={language!r}: must be a name such as 'python', not {type(language).__name__}.")
    name = language.strip().lower()
    return "python" if _PYTHON.fullmatch(name) else _ALIASES.get(name, name)
