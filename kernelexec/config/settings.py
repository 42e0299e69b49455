"""The settings of an executor: a frozen tree, read once.

Times are float seconds. Sizes end in ``_bytes`` and may be text as in ``512m``. Each branch is passed to a single object.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from kernelexec.config import short_options
from kernelexec.config.container import Container
from kernelexec.config.types import (
    MIB,
    CellSeconds,
    Count,
    Cpus,
    Directory,
    FrozenModel,
    Interpreter,
    LastMessages,
    Pattern,
    ReadOnlyMapping,
    ResolvedPath,
    Seconds,
    Secrets,
    Size,
    Variables,
    absolute_path,
    all_defaults,
    as_tuple,
    matching,
    resolve_path,
    source_variables,
)
from kernelexec.errors import InvalidConfig

#: The size of one cell's displays in notebooks and in their files, besides those in its result.
RECORD_BYTES = 64 * MIB
#: The size of each stream, and of all displays, that arrive after the end of their cell.
_LATE_BYTES = 64 * 1024


class Confinement(FrozenModel):
    """Confinement of kernels on this machine (Linux), weaker than a container.

    A confined kernel can write only in the workspace and a temporary directory. The kernel cannot read common locations of
    secrets or other sessions' files, cannot signal or inspect other processes, and has no privileges as root.
    """

    level: Literal["best", "required", "off"] = "best"
    """``best`` applies all layers that this machine supports, and results name the missing ones; ``required`` starts no kernel
    if a layer is missing; ``off`` gives kernels all rights of their user."""
    network: bool | None = None
    """Whether kernels can use the machine's network; by default yes, except for ``bubblewrap``. Without it they cannot connect
    to anything, unix sockets included; in ``bubblewrap`` only to themselves."""
    writable: tuple[ResolvedPath, ...] = ()
    """Further directories and files that kernels may write. Links are resolved when the configuration is read."""
    hidden: tuple[Directory, ...] = ()
    """Further directories that kernels cannot read. A running kernel cannot read new entries next to them either."""
    readable: tuple[ResolvedPath, ...] = ()
    """Hidden directories and files that kernels may read; links are resolved as in ``writable``."""

    @model_validator(mode="after")
    def _check_network(self) -> Self:
        if self.level == "off" and self.network is False:
            raise ValueError("level must be 'best' or 'required' if network=False.")
        return self


_DEBIAN = r"[a-z0-9][a-z0-9+.-]{1,100}(?::[a-z0-9]{1,20})?(?:=[A-Za-z0-9.+:~-]{1,100})?"
_NPM_NAME, _NPM_VERSION = r"(?:@[a-z0-9][a-z0-9._-]{0,100}/)?[a-z0-9][a-z0-9._-]{0,100}", r"[\w^~<>=*][\w.^~<>=*+-]{0,60}"
_DebianPackage = Annotated[str, matching(_DEBIAN, "the name of a Debian package, with or without a version")]
_NpmPackage = Annotated[
    str, matching(rf"{_NPM_NAME}(?:@{_NPM_VERSION})?", "the name of a package of npm, with or without a version")
]


def _check_prefix(value: str) -> str:
    """Check the words of a prefix, which is split as by a shell, without expansion."""
    try:
        words = shlex.split(value)
    except ValueError as exc:
        raise ValueError(f"must be quoted as for a shell ({exc})") from exc
    if not words or not words[0] or "\0" in value:
        raise ValueError("must name a program, as in 'uv run': set one, or remove it")
    return value


class Preinstall(FrozenModel):
    """Packages to install before the first cell of a new session: in this order, 600 s each.

    The first result's notes report failures; the session opens anyway.
    """

    system: tuple[_DebianPackage, ...] = ()
    """Debian packages, installed by ``apt-get`` in containers with a network and ``sudo``."""
    python: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """Python packages, as for ``session.install``; paths of wheels where there is no network."""
    npm: tuple[_NpmPackage, ...] = ()
    """Node packages, installed by ``npm install`` in the workspace if there is a network."""


class InterpreterOptions(FrozenModel):
    """The first programs and packages for cells. A prefix has priority over ``venv``, and ``venv`` over the workspace's."""

    venv: Annotated[Directory, AfterValidator(absolute_path)] | None = None
    """The path of a virtual environment; in containers, the path there. The default is ``.venv`` of the session's workspace
    if it exists, else an environment of the session's own there. Commands find its programs first. Python cells import from it,
    or run on its interpreter if that has ipykernel, is on this machine, and cannot be written by kernels."""
    prefix: Annotated[str, AfterValidator(_check_prefix)] | None = None
    """A prefix of each whole command: ``uv run``, ``conda run -n NAME``, ``poetry run``. Commands then ignore virtual
    environments."""
    prefix_kernel: bool = Field(default=False, strict=True)
    """Whether Python kernels on this machine are started with the prefix too: with ``python``, or the option ``python`` if set,
    which needs ipykernel. Such kernels are confined before the prefix's program starts, and are not forked."""

    preinstall: Preinstall = Field(default_factory=all_defaults)
    """Packages that are installed before a session's first cell."""

    @property
    def launcher_options(self) -> dict[str, object]:
        """Return the options for the launcher, with paths as kernels see them."""
        return {"venv": None if self.venv is None else str(self.venv), "prefix": self.prefix_words}

    @property
    def prefix_words(self) -> list[str]:
        """Return the prefix as a program and its arguments."""
        return shlex.split(self.prefix or "")


_ContextName = Annotated[
    str,
    matching(
        r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}",
        "1 to 128 letters, digits, underscores, dots and dashes, and not begin with a dot or dash",
    ),
]


class ContextPath(FrozenModel):
    """A directory or file of this machine for kernels. Of nested paths, the innermost applies."""

    path: ResolvedPath
    """The path. Links are resolved when the configuration is read. Whenever a session opens, the path must exist and contain no
    link, because kernels may be able to write a directory on the way."""
    permission: Literal["read", "write"] = "read"
    """Whether kernels and file operations can only read the path, or also write it."""
    name: _ContextName | None = None
    """The name below ``/context`` in containers with ``layout="classic"``; by default the path's own name."""
    protected_paths: tuple[Directory, ...] = ()
    """Read-only paths in a writable ``path``: relative to it, or absolute; each must exist.

    In containers and bubblewrap they are mounted read-only. Otherwise a kernel gets rights to all entries that exist next to
    them when it starts: it cannot create, remove or rename entries in their parent directories up to ``path``."""

    @model_validator(mode="after")
    def _resolve_protected_paths(self) -> Self:
        protected = tuple(resolve_path(self.path / path.expanduser()) for path in self.protected_paths)
        for path in protected:
            if self.path not in path.parents:
                raise ValueError(f"the protected path {path} must be inside {self.path}")
        if protected:  # past the frozen model, and without marking the field as set
            object.__setattr__(self, "protected_paths", protected)
        return self


class Profile(FrozenModel):
    """Limits of a kernel and the cells."""

    memory_bytes: Annotated[Size, Field(ge=6 * MIB)]
    """The memory of the kernel's container."""
    cpus: Cpus
    """The number of CPUs of the kernel's container."""
    timeout: Seconds
    """How long a cell may run, in seconds."""


PROFILES: Mapping[str, Profile] = ReadOnlyMapping(
    {
        "simple": Profile(memory_bytes=256 * MIB, cpus=0.5, timeout=30.0),
        "medium": Profile(memory_bytes=512 * MIB, cpus=1.0, timeout=120.0),
        "complex": Profile(memory_bytes=1024 * MIB, cpus=2.0, timeout=600.0),
        "default": Profile(memory_bytes=1024 * MIB, cpus=1.0, timeout=300.0),
    }
)


def _add_builtin_profiles(profiles: Mapping[str, Profile]) -> Mapping[str, Profile]:
    if not all(name.strip() for name in profiles):
        raise ValueError("a profile's name must not be empty")
    return ReadOnlyMapping({**PROFILES, **profiles})


#: Profiles by name: the configured ones and the predefined ones, which they can override.
Profiles = Annotated[Mapping[str, Profile], AfterValidator(_add_builtin_profiles), PlainSerializer(dict)]


Isolation = Literal["local", "bubblewrap", "container", "container-host"]


class Budgets(FrozenModel):
    """Time limits in seconds."""

    timeout: CellSeconds = 60.0
    """How long a cell may run: wall-clock time from its start; ``float("inf")`` is no limit."""
    grace: Seconds = 1.0
    """How long each step of the escalation (interrupt, terminate, kill) may take before the next one, and how long a kernel may
    take to exit by itself when its session closes or restarts."""
    compiled: Seconds = 30.0
    """How long a call into compiled code, which no interrupt reaches, may take after a timeout before the kernel is killed."""
    start: Seconds = 60.0
    """How long a new kernel may take to become ready."""
    approval: Seconds = 300.0
    """How long an approver may take to answer. This time counts in no other budget. No answer means no."""


class OutputLimits(FrozenModel):
    """Limits of the kept output, in bytes of UTF-8."""

    stream_bytes: Size = Field(default=1 * MIB, ge=2)
    """The size of each of stdout and stderr in a result, and of each text of a display: head and tail, half each."""
    display_bytes: Size = Field(default=16 * MIB, ge=0)
    """The size of all displays of one cell in its result."""

    @property
    def record_bytes(self) -> int:
        """``RECORD_BYTES``. Records have whole representations of displays: too large ones are left out, and named."""
        return RECORD_BYTES

    @property
    def late(self) -> OutputLimits:
        """The limits of output after the end of a cell."""
        return _LateLimits.model_construct(stream_bytes=_LATE_BYTES, display_bytes=_LATE_BYTES)


class _LateLimits(OutputLimits):
    @property
    def record_bytes(self) -> int:
        return 0


class Limits(FrozenModel):
    """Resource limits of a kernel's process on this machine. None keeps the machine's limit."""

    nofile: Count | None = Field(default=4096, ge=64)
    """Open file descriptors."""
    as_bytes: Size | None = Field(default=None, ge=256 * MIB)
    """Address space of each process. A cell that exceeds it gets MemoryError."""

    def list_set(self) -> dict[str, int]:
        """Return the set limits by name."""
        return {name: value for name, value in self if value is not None}


class Rules(FrozenModel):
    """Rules for cells. They judge the text of a cell, not the actions of a program; the container is the security boundary."""

    dangers: bool = True
    """Whether dangerous commands are refused: ``rm -rf /``, ``mv`` to ``/dev/null``, ``dd``, writes to disks, fork bombs,
    making file systems and, unless ``container.sudo`` is on, ``sudo``, ``su``, ``chown`` and ``chmod``."""
    allowed_commands: tuple[Pattern, ...] = ()
    """Regular expressions, one of which must match each simple command from its beginning. An empty list allows all."""
    blocked_commands: tuple[Pattern, ...] = ()
    """Regular expressions, none of which may match a simple command from its beginning."""
    match: Literal["command", "prefix"] = "command"
    """The text to match: each simple command, or only the beginning of the whole text."""
    code: Literal["tutorial"] | None = None
    """``tutorial`` refuses what AG2's tutorials refuse: importing ``os``, ``subprocess``, ``sys``, ``requests``, ``urllib``,
    ``socket`` and ``http``, and using ``exec``, ``eval``, ``open``, ``file``, ``__import__``, ``globals`` and ``locals``."""
    ask: Literal["never", "refused", "always"] = "never"
    """The cells that an approver decides on: none, those that these rules refuse, or every cell. Without an approver, or
    without an answer, such a cell does not run."""
    forbidden_modules: tuple[str, ...] = ()
    """Further modules, by their top-level name, that code may not import."""


class Environment(FrozenModel):
    """Environment variables of kernels."""

    pass_names: tuple[str, ...] = ()
    """Variables of this process that kernels get although their names look like secrets."""
    pass_all: bool = Field(default=False, strict=True)
    """Whether kernels, also in containers, get all variables of this process, including keys and passwords. Sources of
    ``secrets`` are excluded."""
    env_file: Directory | None = None
    """A file of lines ``NAME=VALUE``, with the lowest priority. Lines that begin with ``#`` and quotes around a value are
    ignored; other malformed lines are logged. These variables are visible to every user of the container engine."""
    set: Variables = Field(default_factory=dict)
    """Variables that are set for kernels; they override all others."""


class Capacity(FrozenModel):
    """Bounds of the resources in use. At a bound, a request fails with a typed exception, which names the current use."""

    sessions: Count = Field(default=256, ge=1)
    """Open sessions of one executor."""
    idle_seconds: Seconds | None = None
    """How long the kernels of an unused session live; None for no limit. After that they end (``culled``): the next cell gets a
    new kernel, and its result names the lost variables. If ``sessions`` are open, a new session closes the one whose kernels
    were culled first."""
    queue: Count = Field(default=64, ge=0)
    """Cells that may wait in one session while another one runs."""
    code_bytes: Size = Field(default=4 * MIB, ge=1)
    """The largest cell, in bytes of UTF-8; the adapter of Inspect, whose tools send files in commands, sets 16 MiB."""
    value_bytes: Size = Field(default=1024 * MIB, ge=0)
    """The size of the values that one ``put`` or ``get`` carries, and of all snapshots in one workspace, in bytes. A variable
    that does not fit into a snapshot is omitted."""


class Pool(FrozenModel):
    """Warm kernels, started before a session needs them."""

    size: int = Field(default=0, ge=0, le=256)
    """The number of warm kernels; 0 disables the pool."""
    policy: Literal["temporary", "wait", "fail_fast"] = "temporary"
    """If no warm kernel is ready: start one for the session, wait for the next one (at most ``budgets.start`` seconds), or
    fail."""


class Config(FrozenModel):
    """All settings of an executor."""

    model_config = ConfigDict(hide_input_in_errors=True)  # an invalid reference may be the secret itself

    enabled: bool = True
    """Whether code runs at all. If False, as by ``code_execution_config=False``, the executor opens no session."""
    isolation: Isolation = "container"
    """Where kernels run: ``container``; ``local``, on this machine; ``bubblewrap``, on this machine in namespaces of their own;
    or ``container-host``, which is ``local`` for an executor that runs in a container itself."""
    container: Container = Field(default_factory=all_defaults)
    confinement: Confinement = Field(default_factory=all_defaults)
    profiles: Profiles = Field(default_factory=dict)
    """Named limits of memory, CPUs and seconds; ``simple``, ``medium``, ``complex`` and ``default`` are predefined."""
    profile: str | None = None
    """The profile of new kernels; ``container`` and ``budgets`` override it."""
    workspace: Directory = Field(default_factory=lambda: Path("workspaces"))
    """The directory in which every session gets its own directory; relative to the current one: see ``absolute_workspace``."""
    work_dir: Directory | None = None
    """The default working directory of sessions, created if missing; if None, each session has its own."""
    allowed_paths: tuple[Directory, ...] = ()
    """Directories that may contain sessions' ``work_dir``, after links are resolved; an empty list allows all. A session's own
    directory is in ``workspace``."""
    context_paths: tuple[ContextPath, ...] = ()
    """Paths besides the workspace that kernels and file operations can access, such as other agents' outputs; read-only by
    default."""
    python: Interpreter = Field(default_factory=lambda: sys.executable)
    """The interpreter of new kernels: a path, relative to the current directory, or a program name; it needs ipykernel."""
    programs: InterpreterOptions = Field(default_factory=all_defaults)
    fork_server: bool | Literal["first_session"] = True
    """Whether kernels are forked from a process with their modules imported, instead of started one by one: on this machine,
    and, for all but the first kernel, in a container with a read-only root and without ``sudo``. True starts it with the
    executor, so that the first session opens at once; ``first_session``, the default of `kernelexec mcp`, with the first
    session, so that an executor without sessions costs no memory."""
    preload: tuple[str, ...] = ("numpy", "pandas", "matplotlib.pyplot")
    """Further modules that the fork server imports if they are installed: kernels share their memory and import them at once.
    Warm kernels in containers import them too."""
    pool: Pool = Field(default_factory=all_defaults)
    budgets: Budgets = Field(default_factory=all_defaults)
    output: OutputLimits = Field(default_factory=all_defaults)
    limits: Limits = Field(default_factory=all_defaults)
    environment: Environment = Field(default_factory=all_defaults)
    secrets: Secrets = Field(default_factory=dict)
    """Variables of kernels whose values are read from a variable, a file or a function when a kernel starts, and are masked in
    all output."""
    rules: Rules = Field(default_factory=all_defaults)
    capacity: Capacity = Field(default_factory=all_defaults)
    cache: ResolvedPath | None = None
    """The directory of the result cache, private to this user: cells that are executed with ``cache=True`` return what they
    returned before, also in later sessions. Cells must not be able to write there. It keeps at most 256 MiB of results, the
    most recently used ones; nothing of sessions with ``secrets`` and of ephemeral containers."""
    checkpoints: Literal["auto", "each", "named", "off"] = "auto"
    """When a checkpoint is made: a stopped copy of a Python kernel (Linux), to which its session can go back, and from which it
    goes on if the kernel dies. ``auto``, by ``session.checkpoint``, and after each cell that may have changed anything, as long
    as all together take at most 5 % of the time that passes; ``each``, after each cell; ``named``, by ``session.checkpoint``
    only; ``off``, never."""
    read_before_delete: bool = Field(default=True, strict=True)
    """Whether ``session.files`` deletes only files that it has read or created, and files that tools generate."""
    notebook: bool = True
    """Whether every session writes ``<name>.ipynb`` into its workspace; ``run``, ``exec`` and ``repl`` write none."""
    journal: bool = True
    """Whether every session writes ``.journals/<name>.jsonl`` into the executor's workspace; ``request_id`` needs it."""
    save_displays: bool = True
    """Whether displayed pictures and tables are saved as files in ``outputs/`` of the workspace; ``run`` saves none."""
    last_n_messages: LastMessages = "auto"
    """How many messages an agent of AG2 searches for code; ``auto`` searches all messages since its own last one."""
    quiet: bool = Field(default=False, strict=True)
    """Whether nothing is printed on stderr about where code runs; the logger ``kernelexec`` has it. ``KERNELEXEC_QUIET=1``
    sets it for all executors of a process."""
    log_dir: Directory | None = None
    """The directory of ``<name>/docker_container.log``, a log of every session's cells, outputs and kernel events; None for no
    log. It must be outside of the workspaces, where cells could change it. In a directory that containers can write, it is
    read-only for them."""

    @model_validator(mode="before")
    @classmethod
    def _expand_short_names(cls, options: object) -> object:
        return short_options.expand(options) if isinstance(options, Mapping) else options

    @model_validator(mode="after")
    def _check_pool(self) -> Self:
        """Reject a pool whose warm kernels could not get their sessions' workspaces."""
        if self.pool.size and self.isolation == "bubblewrap":
            message = f"pool.size={self.pool.size}: must be 0 for bubblewrap, whose kernels start in their session's workspace."
            raise ValueError(message)
        if self.pool.size == 0 or self.isolation != "container":
            return self
        if self.container.layout == "host":
            raise ValueError(
                f"pool.size={self.pool.size}: warm containers cannot mount workspaces at paths that contain session names."
                " Set container.layout='classic' (kernels see /workspace), or pool.size=0."
            )
        if self.container.name is not None:
            raise ValueError(f"pool.size={self.pool.size} and container.name={self.container.name!r}: set only one of them.")
        return self

    @model_validator(mode="after")
    def _check_prefix_kernel(self) -> Self:
        if not self.programs.prefix_kernel:
            return self
        for wrong, reason in (
            (self.programs.prefix is None, "programs.prefix must be set too"),
            (self.isolation == "container", "must be False for containers: `container.python` sets the interpreter"),
            (self.pool.size > 0, "pool.size must be 0, because such kernels start in their session's workspace"),
        ):
            if wrong:
                raise ValueError(f"programs.prefix_kernel=True: {reason}.")
        return self

    @model_validator(mode="after")
    def _check_secrets_are_set_once(self) -> Self:
        variables = {*self.environment.set, *self.environment.pass_names}
        if twice := sorted(variables & {*self.secrets, *source_variables(self.secrets)}):
            message = f"{twice[0]} must not be both a secret and a variable that is set or passed on: remove one of them."
            raise ValueError(message)
        return self

    @property
    def uses_fork_server(self) -> bool:
        """Return whether kernels on this machine are forked if possible."""
        return self.fork_server and self.isolation in {"local", "container-host"} and not self.programs.prefix_kernel

    @property
    def keeps_checkpoints(self) -> bool:
        """Return whether a stopped copy of a kernel outlives the kernel, and can become the next kernel."""
        # A process of a container or a PID namespace ends with the first process there, and a copy with it: a container keeps
        # copies if several kernels share it, bubblewrap has a namespace for each kernel.
        if self.isolation == "container":
            return self.fork_server and self.container.is_reusable
        return self.isolation != "bubblewrap"

    @property
    def confines_kernels(self) -> bool:
        """Return whether kernels confine themselves, which is not needed in containers."""
        return self.isolation != "container" and self.confinement.level != "off"

    @property
    def has_local_network(self) -> bool:
        """Return whether kernels on this machine can use the network."""
        chosen = self.confinement.network
        return self.isolation != "bubblewrap" if chosen is None else chosen

    @property
    def has_network(self) -> bool:
        """Return whether cells have a network."""
        return self.container.network != "none" if self.isolation == "container" else self.has_local_network

    @property
    def absolute_workspace(self) -> Path:
        """Return ``workspace`` as an absolute path.

        Raises:
            InvalidConfig: the path is relative, and the current directory is gone.
        """
        try:
            return self.workspace.expanduser().absolute()
        except OSError as exc:
            message = f"workspace={str(self.workspace)!r}: the current directory is gone: name an absolute path."
            raise InvalidConfig(message) from exc
