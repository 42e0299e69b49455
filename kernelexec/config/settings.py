"""The settings of an executor: one frozen tree, read once.

Times are float seconds, sizes end in ``_bytes``. Every branch goes to the one object that lives by it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from kernelexec.config.cache import CacheChoice, ResultCache
from kernelexec.config.confinement import Confinement
from kernelexec.config.container import Container
from kernelexec.config.interpreter import InterpreterOptions
from kernelexec.config.paths import ContextPath
from kernelexec.config.profiles import Profiles
from kernelexec.config.secret_references import Secrets, sources
from kernelexec.config.types import MIB, Count, Directory, FrozenModel, Interpreter, LastMessages, Pattern, Seconds, Variables

Isolation = Literal["local", "bubblewrap", "container", "container-host"]


class Budgets(FrozenModel):
    """How long things may take, in seconds."""

    timeout: Seconds = 60.0
    """How long a cell may run, wall clock from its start."""
    grace: Seconds = 1.0
    """How long each rung of the ladder may take before the next one is climbed."""
    start: Seconds = 60.0
    """How long a new kernel may take until it serves."""
    stop: Seconds = 1.0
    """How long a kernel may take to leave by itself when its session closes."""
    approval: Seconds = 300.0
    """How long an approver may take to answer; it counts in no other budget. No answer is a no."""


class OutputLimits(FrozenModel):
    """How much output is kept, in bytes of UTF-8 unless said otherwise."""

    stream_bytes: Count = Field(default=1 * MIB, ge=2)
    """What is kept in the result of each of stdout and stderr: head and tail, half each."""
    display_bytes: Count = Field(default=16 * MIB, ge=0)
    """What all displays of one cell together may hold in its result."""
    text_bytes: Count = Field(default=1 * MIB, ge=2)
    """What one text representation of a display may hold: head and tail."""
    message_bytes: Count = Field(default=16 * MIB, ge=1024)
    """The largest message that is read at all; what is larger is counted and dropped as it arrives."""
    spill_bytes: Count = Field(default=256 * MIB, ge=0)
    """How much of one cell's streams goes to the spill file when they are over ``stream_bytes``."""
    late_bytes: Count = Field(default=64 * 1024, ge=2)
    """What is kept of each stream, and of all displays, that come after their cell has ended."""
    files_bytes: Count = Field(default=256 * MIB, ge=0)
    """How much one cell's displays may write as files into the workspace."""

    @property
    def late(self) -> OutputLimits:
        """Return the limits of output after the end of its cell."""
        return self.model_copy(update={"stream_bytes": self.late_bytes, "display_bytes": self.late_bytes})


class Limits(FrozenModel):
    """Resource limits of a kernel's process on this machine. None leaves the machine's own limit."""

    nofile: Count | None = Field(default=4096, ge=64)
    """Open file descriptors."""
    fsize_bytes: Count | None = Field(default=None, ge=MIB)
    """The largest file a cell may write."""
    as_bytes: Count | None = Field(default=None, ge=256 * MIB)
    """Address space of each process: a cell over it gets MemoryError."""
    nproc: Count | None = Field(default=None, ge=16)
    """Processes and threads of the whole user (the kernel of the machine counts per uid)."""


class Rules(FrozenModel):
    """What may run. These are manners: they see what a cell says, not what a program does. The container is the wall."""

    dangers: bool = True
    """Whether dangerous commands are refused: ``rm -rf /``, ``mv`` to ``/dev/null``, ``dd``, writes to disks, fork bombs,
    making file systems and, unless ``container.sudo`` is on, ``sudo``, ``su``, ``chown`` and ``chmod``."""
    allowed_commands: tuple[Pattern, ...] = ()
    """Regular expressions, one of which must match each simple command from its beginning; none allows all."""
    blocked_commands: tuple[Pattern, ...] = ()
    """Regular expressions, none of which may match a simple command from its beginning."""
    match: Literal["command", "prefix"] = "command"
    """What these are matched with: each simple command, or the whole text from its beginning only."""
    code: Literal["tutorial"] | None = None
    """``tutorial`` refuses what AG2's tutorials refuse: importing ``os``, ``subprocess``, ``sys``, ``requests``, ``urllib``,
    ``socket`` and ``http``, and using ``exec``, ``eval``, ``open``, ``file``, ``__import__``, ``globals`` and ``locals``."""
    ask: Literal["never", "refused", "always"] = "never"
    """What an approver is asked about: nothing, what these rules refuse, or every cell. Without one, or an answer, it does not
    run."""
    forbidden_modules: tuple[str, ...] = ()
    """Modules, by their first name, that code may not import either."""
    forbidden_names: tuple[str, ...] = ()
    """Built-in functions that code may not use either."""


class Environment(FrozenModel):
    """What a kernel's process may know of this process's environment."""

    pass_names: tuple[str, ...] = ()
    """Variables that are handed on though they look like secrets."""
    pass_all: bool = Field(default=False, strict=True)
    """Whether all are, keys and passwords too, and into containers; but not those that ``secrets`` names as sources."""
    env_file: Directory | None = None
    """A file of lines ``NAME=VALUE``, under everything else. Lines that begin with ``#`` count for nothing, nor do quotes
    around a value; what is no such line is told by the logger. The engine shows these variables to who may ask it."""
    set: Variables = Field(default_factory=dict)
    """Variables that are set for the kernel, over everything else."""


class Capacity(FrozenModel):
    """Bounds of what is held at once; at a bound a typed refusal says what is in use."""

    sessions: Count = Field(default=256, ge=1)
    """Open sessions of one executor."""
    idle_seconds: Seconds | None = None
    """How long a session's kernels may live without a use of the session; then they end (``culled``), and the session's next
    cell gets a new one and says what was lost. None lets them live. Where ``sessions`` are open, the one whose kernels were
    ended so first is closed for a new one."""
    queue: Count = Field(default=64, ge=0)
    """Cells that may wait in one session behind the running one."""
    code_bytes: Count = Field(default=4 * MIB, ge=1)
    """The largest cell, in bytes of UTF-8."""
    background: Count = Field(default=10, ge=0)
    """Background commands that may run beside one session's cells."""
    results: Count = Field(default=100, ge=1)
    """Finished executions that a session remembers."""
    journal_bytes: Count = Field(default=64 * MIB, ge=64 * 1024)
    """What a session's journal may hold, in bytes; over it its oldest quarter goes."""
    snapshot_bytes: Count = Field(default=1024 * MIB, ge=0)
    """What all snapshots in one workspace may hold together, in bytes; a variable that does not fit is left out."""


class FileBounds(FrozenModel):
    """Bounds of listing, reading, writing and deleting files for an agent."""

    read_before_delete: bool = Field(default=True, strict=True)
    """Whether a file can be deleted only after it was read or made by these operations; what tools generate always can."""
    read_bytes: Count = Field(default=MIB, ge=16)
    """How much of a file one call reads at most, in bytes; the next call reads on."""
    write_bytes: Count = Field(default=16 * MIB, ge=1)
    """How much one call writes at most, in bytes."""
    entries: Count = Field(default=10_000, ge=1, le=1_000_000)
    """How many entries of directories one call looks at."""


class Pool(FrozenModel):
    """Idle kernels that serve before a session asks for one."""

    size: int = Field(default=0, ge=0, le=256)
    """How many are kept ready; 0 keeps none."""
    policy: Literal["temporary", "wait", "fail_fast"] = "temporary"
    """Where none is ready: start one for that session, wait for the next (``budgets.start`` seconds at most), or refuse."""
    max_age: Seconds = 3600.0
    """How old an idle one may get before another takes its place, in seconds."""
    memory_bytes: Count | None = Field(default=None, ge=MIB)
    """What all idle ones together may take; None is a quarter of the machine's memory."""


class Config(FrozenModel):
    """All settings of an executor."""

    model_config = ConfigDict(hide_input_in_errors=True)  # what was given in the place of a reference may be a secret

    enabled: bool = True
    """Whether code runs at all; an executor for which it does not opens no session."""
    isolation: Isolation = "container"
    """Where kernels run: in containers; ``local``, on this machine; ``bubblewrap``, there in namespaces of their own; or
    ``container-host``, which is ``local`` for an executor that is in a container itself."""
    container: Container = Field(default_factory=Container)
    confinement: Confinement = Field(default_factory=Confinement)
    profiles: Profiles = Field(default_factory=dict)
    """Amounts of memory, processor time and seconds by name; ``simple``, ``medium``, ``complex`` and ``default`` are there."""
    profile: str | None = None
    """The profile that kernels start with; what is set in ``container`` and ``budgets`` themselves goes over it."""
    workspace: Directory = Field(default_factory=lambda: Path("workspaces"))
    """The directory in which every session gets a directory of its own; relative to the current one: see ``workspaces``."""
    work_dir: Directory | None = None
    """The directory that sessions work in unless they name another, made where it is missing; by default each has its own."""
    allowed_paths: tuple[Directory, ...] = ()
    """Where sessions' ``work_dir`` may lie, links resolved; none is anywhere. A session's own directory is in ``workspace``."""
    context_paths: tuple[ContextPath, ...] = ()
    """What kernels and file operations see besides the workspace, as other agents' outputs: to read, unless said otherwise."""
    python: Interpreter = Field(default_factory=lambda: sys.executable)
    """The interpreter of new kernels: a path, relative to the current directory, or a program's name; it needs ipykernel."""
    programs: InterpreterOptions = Field(default_factory=InterpreterOptions)
    fork_server: bool = True
    """Whether kernels are forked by a process that has imported what they need, not started one by one: on this machine, and
    in a container all but the first, where its root can only be read and ``sudo`` is off."""
    preload: tuple[str, ...] = ("numpy", "pandas", "matplotlib.pyplot")
    """The modules that it imports besides, where they are there: kernels then share their memory, and import them at once. Idle
    kernels in containers import them too."""
    pool: Pool = Field(default_factory=Pool)
    budgets: Budgets = Field(default_factory=Budgets)
    output: OutputLimits = Field(default_factory=OutputLimits)
    limits: Limits = Field(default_factory=Limits)
    environment: Environment = Field(default_factory=Environment)
    secrets: Secrets = Field(default_factory=dict)
    """Variables of kernels whose values are read when a kernel starts, from a variable, a file or a function, and are masked
    wherever they come out again."""
    rules: Rules = Field(default_factory=Rules)
    capacity: Capacity = Field(default_factory=Capacity)
    cache: CacheChoice = Field(default_factory=ResultCache)
    """Whether results of cells are found again in later sessions, and where they are kept; off unless asked for."""
    files: FileBounds = Field(default_factory=FileBounds)
    notebook: bool = True
    """Whether every session keeps ``<name>.ipynb`` in its workspace."""
    journal: bool = True
    """Whether every session keeps ``.journals/<name>.jsonl`` in the executor's workspace; ``request_id`` needs it."""
    save_displays: bool = True
    """Whether pictures and tables that a cell displays are saved as files under ``outputs/`` of the workspace."""
    last_n_messages: LastMessages = "auto"
    """How many messages back those who read conversations look for code; ``auto`` is all since their own last one."""
    quiet: bool = Field(default=False, strict=True)
    """Whether nothing is written to stderr of containers that start and are removed; the logger ``kernelexec`` tells of them
    all the same. What local execution means is always said."""
    log_dir: Directory | None = None
    """Where every session keeps ``<name>/docker_container.log``: what ran, what came out, and what became of its kernels;
    outside of the workspaces, where cells could change it. In a directory that containers can write, it is
    read only for them. None keeps none."""

    @model_validator(mode="after")
    def _pool_fits(self) -> Self:
        """Refuse a pool whose idle kernels could not get their sessions' workspaces."""
        if self.pool.size and self.isolation == "bubblewrap":
            message = f"pool.size={self.pool.size}: kernels in bubblewrap cannot wait for their workspaces. Set pool.size=0."
            raise ValueError(message)
        if self.pool.size == 0 or self.isolation != "container":
            return self
        if self.container.layout == "host":
            message = (
                f"pool.size={self.pool.size}: idle containers cannot have workspaces at their own paths, which their sessions'"
                " names are in. Set container.layout='classic' (kernels see /workspace), or pool.size=0."
            )
            raise ValueError(message)
        if self.container.name is not None:
            message = f"pool.size={self.pool.size} and container.name={self.container.name!r}: idle containers share no name."
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _prefix_fits(self) -> Self:
        if not self.programs.prefix_kernel:
            return self
        for wrong, reason in (
            (self.programs.prefix is None, "there is no programs.prefix to put before it"),
            (self.isolation == "container", "in containers `container.python` names the interpreter"),
            (self.pool.size > 0, "it starts in its session's workspace, so no idle one can wait. Set pool.size=0"),
        ):
            if wrong:
                message = f"programs.prefix_kernel=True: {reason}."
                raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _secrets_are_set_once(self) -> Self:
        variables = {*self.environment.set, *self.environment.pass_names, *self.container.environment}
        if twice := sorted(variables & {*self.secrets, *sources(self.secrets)}):
            message = f"{twice[0]} is a secret, and a variable that is set or handed on too: leave one of them out."
            raise ValueError(message)
        return self

    @property
    def forks(self) -> bool:
        """Return whether kernels on this machine are to be forked, where that is possible."""
        return self.fork_server and self.isolation in {"local", "container-host"} and not self.programs.prefix_kernel

    @property
    def confines(self) -> bool:
        """Return whether kernels confine themselves: a container's need not."""
        return self.isolation != "container" and self.confinement.level != "off"

    @property
    def networked(self) -> bool:
        """Return whether kernels on this machine have its network."""
        chosen = self.confinement.network
        return self.isolation != "bubblewrap" if chosen is None else chosen

    @property
    def online(self) -> bool:
        """Return whether cells have a network, wherever they run."""
        return self.container.network != "none" if self.isolation == "container" else self.networked

    @property
    def workspaces(self) -> Path:
        """Return ``workspace`` as an absolute path."""
        return self.workspace.expanduser().absolute()
