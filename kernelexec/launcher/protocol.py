"""The protocol between driver and launcher: the names, fields and formats of everything exchanged.

This module uses the standard library only and is imported by both sides. Beside Jupyter's sockets there
are these channels:

| from | to | how | what |
| --- | --- | --- | --- |
| driver | every launcher process | environment variable ``KERNELEXEC_LAUNCH`` | ``LaunchOptions`` as JSON |
| launcher | driver | FIFO ``LaunchOptions.ready`` | ``ReadyMessage``, one line of JSON |
| driver | kernel | control channel | ``*_REQUEST``; a request with a reply is answered by ``reply_type`` |
| kernel | driver | iopub | ``MEMORY``, ``OBSTACLES``, ``PROGRAM``, ``COMMAND``, ``INPUT``, ``REPLAY_BEGIN``, ``REPLAY_GAP`` |
| kernel | driver | metadata of ``execute_reply`` | ``ReplyMetadata`` under ``METADATA_KEY`` |
| kernel | driver | mapped file ``LaunchOptions.crash_buffer`` | the newest text of the running cell: ``CRASH_RECORD`` |
| driver | kernel | code of ``execute_request`` | the calls built by ``*_source`` |
| driver | fork server, container init | datagrams of JSON | ``Fork``, ``ForkServer*``; ``InitRequest``, ``InitReport`` |
| driver | checkpoint | datagrams of JSON on a socket of the private directory | ``RestoreRequest``, ``CheckpointReport`` |
| driver | one-shot process | files of its directory | ``ONE_SHOT_ORDER``, ``ONE_SHOT_ANSWER`` |

The driver must not trust any content from a kernel: cells run in the kernel's process and can write to all channels.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

# Command line of the launcher: ``python <launcher> FLAG ARGUMENT...``; without a flag the arguments are a kernel's.
GUARD_FLAG = "--guard"
#: A guard that alone gets signals, and hands them on to its group.
GUARD_ALONE_FLAG = "--guard-alone"
CONFINED_FLAG = "--confined"
FORKSERVER_FLAG = "--forkserver"
CONTAINER_INIT_FLAG = "--container-init"
RELAY_FLAG = "--relay"
ONE_SHOT_FLAG = "--one-shot"
USER_COMMAND_FLAG = "--user-command"
END_COMMAND_FLAG = "--end-command"

# Environment variables.
LAUNCH_OPTIONS_VARIABLE = "KERNELEXEC_LAUNCH"
#: The owner's mark on a kernel and on every process that the kernel starts.
KERNEL_MARK_VARIABLE = "KERNELEXEC_KERNEL"
#: Metadata of a display that Jupyter shows in a pager, as of help: notebooks do not have it.
PAGER = "kernelexec_pager"
#: The kernel's mark on one command and on every process that the command starts.
COMMAND_MARK_VARIABLE = "KERNELEXEC_COMMAND"
#: "1" where the kernel's user may become root by sudo.
SUDO_VARIABLE = "KERNELEXEC_SUDO"

# Jupyter messages.
DELIMITER = b"<IDS|MSG>"
#: The user's name in the headers of the owner's requests; other clients of the kernel have another one.
OWNER_USERNAME = "kernelexec"
#: The key of the launcher's entry in the metadata of replies and in the content of ``RESUME_REQUEST``'s reply.
METADATA_KEY = "kernelexec"

# Requests on the control channel. Those that end a cell, Jupyter's `interrupt_request` too, name it by ``msg_id``.
CANCEL_REQUEST = "kernelexec_cancel_request"
COMMAND_REQUEST = "kernelexec_command_request"
ENTER_REQUEST = "kernelexec_enter_request"
ENVIRONMENT_REQUEST = "kernelexec_environment_request"
INPUT_REQUEST = "kernelexec_input_request"
JOBS_REQUEST = "kernelexec_jobs_request"
KILL_REQUEST = "kernelexec_kill_request"
#: To leave out a cell that waits for another client's.
SKIP_REQUEST = "kernelexec_skip_request"
RESUME_REQUEST = "kernelexec_resume_request"
VARIABLES_REQUEST = "kernelexec_variables_request"
VERDICT_REQUEST = "kernelexec_verdict_request"

# Messages on iopub.
#: The kernel's memory is short: ``MemoryReport`` with the ``token``.
MEMORY = "kernelexec_memory"
#: What prevents checkpoints after cells has changed: ``obstacles``, a list of ``Obstacle``, with the ``token``.
OBSTACLES = "kernelexec_obstacles"
#: A cell is about to start a program: ``words`` or ``text``, ``name``, ``token``; answered by ``VERDICT_REQUEST``.
PROGRAM = "kernelexec_program"
#: A command needs its owner: ``name``, ``token`` and an ``action`` of ``CommandAction``; answered by ``COMMAND_REQUEST``.
COMMAND = "kernelexec_command"
#: A cell asks for input: ``name``, ``prompt``, ``password``, ``token``; answered by ``INPUT_REQUEST``.
INPUT = "kernelexec_input"
#: The kept messages of the newest cell follow: ``reply`` and ``metadata`` of the cell, or None while it runs.
REPLAY_BEGIN = "kernelexec_replay"
#: Messages were dropped here: ``messages``, ``text_bytes``, ``other_bytes``.
REPLAY_GAP = "kernelexec_gap"

# The crash buffer: a file of two halves of this size, filled in turn. Each begins with the msg_id of the cell, padded with
# NUL; records follow: header, then text in UTF-8. The newest record still grows: its length is CRASH_OPEN_LENGTH, and it ends
# where only NUL follows. A header is 1 for stderr else 0 (u8), length (u32), offset in the text of the whole cell (u64).
CRASH_HALF_BYTES = 1024 * 1024
CRASH_KEY_BYTES = 64
CRASH_OPEN_LENGTH = 0xFFFFFFFF
CRASH_RECORD = struct.Struct("<BIQ")

# Files in the directory of a one-shot process.
ONE_SHOT_ORDER, ONE_SHOT_ANSWER = "order.json", "answer.json"
# The virtual environment of a project in its directory.
PROJECT_VENV = ".venv"
# Our directory in a workspace; in it that of the sessions' own virtual environments; the only package file of an unused one.
OURS, OWN_ENVIRONMENTS, OWN_PACKAGES = ".kernelexec", "venvs", "_kernelexec.pth"


def reply_type(request: str) -> str:
    """Return the message type of the reply to a request."""
    return f"{request.removesuffix('_request')}_reply"


@dataclass(frozen=True)
class LaunchOptions:
    """Options of a process of the launcher. Every option has a default, so the launcher serves any Jupyter client.

    The directory of a kernel behind a relay is hidden from the owner, so the owner passes the ``connection``.
    """

    ready: str | None = None
    """Path of the FIFO, or of the relay's file, for the ``ReadyMessage``."""
    owner: str | None = None
    """Path of the FIFO that the owner holds open for writing while it lives."""
    stacks: str | None = None
    """File for the stacks of all threads; stderr by default."""
    crash_buffer: str | None = None
    """File of the crash buffer."""
    scratch: str | None = None
    """Directory for temporary files of commands."""
    connection: dict[str, Any] | None = None
    """Content of the connection file, which this process writes, with the other files that a relay needs."""
    token: str = ""
    """Secret that proves messages of this launcher; empty for other programs' kernels."""
    unix_proxy: dict[str, Any] = field(default_factory=dict)
    """``address`` and ``sockets`` (path to port) of a kernel that cannot use unix sockets."""
    limits: dict[str, int] = field(default_factory=dict)
    confinement: dict[str, Any] | None = None
    """Fields of ``sandbox.confinement.ConfinementOptions``."""
    confined: dict[str, list[str]] | None = None
    """Layers that confine this process already, and missing ones."""
    audits_programs: bool = False
    """Whether the owner is asked about each program before user code starts it."""
    programs: dict[str, Any] = field(default_factory=dict)
    """``prefix`` of commands and ``venv``, both optional; empty if no virtual environment is looked for."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that are set once this process is confined: they decide which files a program loads."""
    cwd: str | None = None
    """Working directory from then on."""
    secrets: str | None = None
    """Path of a pipe with variables of the kernel, for its guard."""
    grace_seconds: float = 0.0
    """Seconds that the kernel goes on without an owner, for a new one that takes it over."""
    replay_bytes: int = 0
    """Limit for the kept text of the newest cell, for a new owner; other messages have four times as much. 0 keeps nothing."""
    checkpoints: dict[str, Any] | None = None
    """``directory`` of the sockets of checkpoints, ``limit`` of their number, ``memory_bytes``, ``mode``, the newest number
    so far (``after``), and of earlier kernels' checkpoints those ``requested``, and ``processes``.

    None if the kernel makes none.
    """
    connection_file: str | None = None
    """The file with the sockets and the key of a kernel that a checkpoint forks."""
    reseed: bool = False
    """Whether its random numbers differ from those of other kernels of the checkpoint."""
    mark: str | None = None
    """Its mark, if that is in no environment of it."""
    stderr: str | None = None
    """The file for its own output."""

    @classmethod
    def take(cls) -> LaunchOptions:
        """Return the options of this process and remove them from the environment: user code has no use for them."""
        return cls.of(json.loads(os.environ.pop(LAUNCH_OPTIONS_VARIABLE, "{}")))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LaunchOptions:
        """Return the options with these fields; None stands for the default."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if values.get(name) is not None})

    def as_environment(self) -> dict[str, str]:
        """Return the environment variable with these options."""
        return {LAUNCH_OPTIONS_VARIABLE: json.dumps({name: value for name, value in asdict(self).items() if value is not None})}

    def apply(self) -> None:
        """Set environment and working directory, after the confinement of this process.

        Raises:
            OSError: the directory is missing, or this process may not enter it.
        """
        os.environ.update(self.environment)
        if self.cwd is not None:
            os.chdir(self.cwd)


class ReadyMessage(TypedDict):
    """A launcher's report of a serving kernel."""

    pid: int
    token: str
    python: str
    executable: str
    confinement: dict[str, list[str]]


class MemoryReport(TypedDict):
    """Memory of the kernel's control group, in bytes."""

    used: int
    limit: int
    high: bool
    kills: int
    checkpoints: NotRequired[int]
    """How many of the killed processes were checkpoints of this kernel."""
    biggest: list[tuple[str, int]]


class DirectoryReport(TypedDict):
    """A report of an unusable current directory, replaced by the workspace."""

    problem: str
    """``was deleted`` or ``cannot be entered``."""
    workspace: str | None
    is_new: bool
    """Whether the workspace is another directory than at the start."""
    reason: str | None
    """Why the workspace cannot be used either."""


class ReplyMetadata(TypedDict):
    """The launcher's report of a cell, in the metadata of the reply."""

    token: str
    pid: int
    names_added: list[str]
    names_removed: list[str]
    names_count: int
    next_cell: int
    """The execution count of the next cell."""
    cpu_seconds: float
    peak_memory_bytes: int | None
    exit_code: int | None
    work_dir: str | None
    answer: dict[str, Any] | None
    memory: MemoryReport | None
    python_with_module: NotRequired[str | None]
    programs: NotRequired[dict[str, Any]]
    """What is new: the virtual environment (``venv``), and packages of which cells have others (``hidden``, ``kept``)."""
    literal: NotRequired[bool | str]
    """True if the text of the cell's value is a literal that says all of it; else a literal that does, or ``ENCODED_VALUE``."""
    exit_status: NotRequired[int]
    """The status of the ``SystemExit`` that ended the cell."""
    directory: NotRequired[DirectoryReport]
    """On the current directory, if it could not be used."""


class CommandProcess(TypedDict):
    """The process of a command: the differences from other commands of the session's shell."""

    env: dict[str, str]
    """Further variables."""
    user: str | None
    """Name or number of the account that it runs as, if it is not the kernel's own."""
    owner_runs: bool
    """Whether the owner alone can run processes as another user."""
    reads_owner: bool
    """Whether its standard input comes from the owner in pieces."""
    writes_owner: bool
    """Whether its standard output goes to the owner as bytes."""


#: ``read`` is answered by the next bytes of the standard input (``content`` in base64, ``more``), ``write`` takes bytes of the
#: standard output (``content``) and is answered by whether more is wanted (``more``), ``run`` runs the command as its user
#: (answered by ``exit_code``) and ``end`` ends that process.
CommandAction = Literal["read", "write", "run", "end"]


#: The beginning of the names of checkpoints' sockets in the kernel's private directory; the number follows.
CHECKPOINT_SOCKET = "c-"
#: The beginning of a value that is no literal: then a file of ``values`` follows, in base64.
ENCODED_VALUE = "base64:"
#: The request to a checkpoint to end.
DROP_REQUEST = b'{"drop": true}'


class Obstacle(TypedDict):
    """An obstacle to a copy of a kernel by a fork."""

    kind: Literal["threads", "native threads", "tasks", "connections", "transactions", "devices", "loop", "limit"]
    names: list[str]


class CheckpointEntry(TypedDict):
    """A checkpoint: a stopped copy of the kernel."""

    number: int
    name: str | None
    is_automatic: bool
    cell: int
    """The execution count of the next cell when it was made."""
    after: str
    """The message id of the last cell or command of the user before it; empty if there is none."""
    seconds: float
    """The time that its fork took."""
    pid: int


class CopyTarget(TypedDict):
    """The place of a checkpoint, and the identity of the copy there."""

    directory: str
    """Its private directory."""
    number: int
    """The number of the checkpoint."""
    owner: str
    """The pipe of its owner."""
    mark: str | None
    """The mark of its processes; None for those of the kernel that is copied."""
    moves: list[tuple[str, str]]
    """Directories that are others for it, the workspace first, each with the one in its place; empty if none is."""


class RestoreRequest(TypedDict):
    """A request to a checkpoint: describe the checkpoint, or fork a kernel with these options."""

    restore: NotRequired[dict[str, Any]]
    """Fields of ``LaunchOptions``."""


class CheckpointReport(TypedDict, total=False):
    """A message of a checkpoint."""

    checkpoint: CheckpointEntry
    pid: int
    """The process of the forked kernel."""
    failed: str


class Fork(TypedDict):
    """A kernel to be forked by the fork server or the container's init."""

    arguments: list[str]
    environ: dict[str, str]
    cwd: str


class ForkServerSettings(TypedDict):
    """The settings of a fork server, in a file. The first message to the server carries this file and the server's stderr."""

    environ: dict[str, str]
    """The environment in which it imports modules."""
    modules: list[str]
    """The modules that it imports while it waits."""


class ForkServerReport(TypedDict, total=False):
    """A message of the fork server; ``request`` numbers the driver's requests."""

    serves: bool
    modules: list[str]
    """The names of top-level modules that were loaded since the last message with names, the standard library's excepted."""
    threads: int
    imported: str
    shows: bool
    failed: str
    request: int
    pid: int
    ended: int
    lost: str
    """Why an orphan was not adopted."""


class InitRequest(TypedDict, total=False):
    """A request to the container's init: fork or signal a kernel, or kill every process and clear ``sweep``."""

    birth: Fork
    signal: int
    adopt: int
    """The process of a kernel that a checkpoint has forked."""
    mark: str
    """The mark of the branch that ``adopt``, ``signal`` and ``end`` mean; empty for the kernel."""
    end: list[int]
    """The processes that stay of the branch; of the kernel those that stay besides the ones of branches."""
    sweep: list[str]
    spared: list[str]


class InitReport(TypedDict, total=False):
    """A message of the container's init."""

    born: int
    failed: str | None
    ended: int
    mark: str
    """The mark of the branch that has ended; empty for the kernel."""
    kills: int
    swept: bool


# Calls of the shell's methods, which travel as the code of an execute_request because they take their turn like cells.
_SHELL = "get_ipython()"
#: The same where a user may have replaced the name.
_IMPORTED_SHELL = f"__import__('IPython').{_SHELL}"
_RUN_COMMAND = f"{_SHELL}.run_command("
_RUN_PROGRAM = f"{_SHELL}.run_argv("
SERVE_PACKAGES_SOURCE = f"{_SHELL}.serve_packages()"
#: Code for a turn in the queue in which nothing runs.
NOTHING_SOURCE = f"{_IMPORTED_SHELL} and None"
#: The calls that may change variables, or the session's shell.
_CHANGING_CALLS = (
    *(_RUN_COMMAND, _RUN_PROGRAM, f"{_SHELL}.load_variables("),
    *(f"{_IMPORTED_SHELL}.{name}(" for name in ("run_tests", "set_values", "delete_value")),
)
_SHELL_CALLS = (
    *_CHANGING_CALLS,
    *(f"{_SHELL}.{name}(" for name in ("serve_packages", "save_variables", "display_formatter.format")),
    *(f"{_IMPORTED_SHELL}{rest}" for rest in (".write_values(", ".checkpoint(", " and None")),
)
#: Code that loads IPython's display formatters.
WARM_UP_SOURCE = f"{_SHELL}.display_formatter.format(0) and None"


def run_command_source(command: str, work_dir: str | None, stdin: str | None, process: CommandProcess | None) -> str:
    """Return the code to run a command in the session's shell."""
    options = "" if process is None else f", process={process!r}"
    return f"{_RUN_COMMAND}{command!r}, work_dir={work_dir!r}, stdin={stdin!r}{options})"


def is_run_command(source: str) -> bool:
    """Return whether code is the call of ``run_command_source``."""
    return source.startswith(_RUN_COMMAND)


def is_shell_call(source: object) -> bool:
    """Return whether code is a call of the launcher's shell by the driver: a command, or an internal request."""
    return isinstance(source, str) and source.startswith(_SHELL_CALLS)


def is_users_cell(source: str) -> bool:
    """Return whether code is a cell or a command of the user, and no internal request."""
    return not source.startswith(_SHELL_CALLS) or source.startswith((_RUN_COMMAND, _RUN_PROGRAM))


def may_change_state(source: str) -> bool:
    """Return whether code may change variables or the session's shell, as all cells may, but not all internal requests."""
    return not source.startswith(_SHELL_CALLS) or source.startswith(_CHANGING_CALLS)


def run_program_source(argv: Sequence[str]) -> str:
    """Return the code to run a program without the session's shell."""
    return f"{_RUN_PROGRAM}{list(argv)!r})"


def save_variables_source(directory: str, names: Sequence[str] | None, limit_bytes: int) -> str:
    """Return the code to save variables into a new directory; ``names`` None stands for the user's first thousand."""
    return f"{_SHELL}.save_variables({directory!r}, {None if names is None else list(names)!r}, {limit_bytes})"


def load_variables_source(directory: str, files: Sequence[tuple[str, str, str]]) -> str:
    """Return the code to load variables from files: name, file and SHA-256 of each."""
    return f"{_SHELL}.load_variables({directory!r}, {list(files)!r})"


def set_values_source(path: str) -> str:
    """Return the code to set the variables of a file of ``values``."""
    return f"{_IMPORTED_SHELL}.set_values({path!r})"


def write_values_source(path: str, names: Sequence[str], limit_bytes: int) -> str:
    """Return the code to write the values of variables to a new file of ``values``."""
    return f"{_IMPORTED_SHELL}.write_values({path!r}, {list(names)!r}, {limit_bytes})"


def delete_value_source(name: str) -> str:
    """Return the code to delete a variable."""
    return f"{_IMPORTED_SHELL}.delete_value({name!r})"


def run_tests_source(code: str, cases: Sequence[str], seconds: float) -> str:
    """Return the code to run test cases, with a limit in seconds for each."""
    return f"{_IMPORTED_SHELL}.run_tests({code!r}, {list(cases)!r}, {seconds!r})"


def checkpoint_source(name: str | None, target: CopyTarget | None = None) -> str:
    """Return the code to make a checkpoint, for another kernel if there is a ``target``."""
    return f"{_IMPORTED_SHELL}.checkpoint({name!r}{'' if target is None else f', {target!r}'})"


def fork_content(arguments: Sequence[str], environ: Mapping[str, str], cwd: str) -> Fork:
    """Return the content of a request to fork a kernel."""
    return {"arguments": list(arguments), "environ": dict(environ), "cwd": cwd}
