"""Options shared by commands, and the isolation options of all commands with code to run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kernelexec.cli.terminal import PictureChoice
from kernelexec.config import Config, load, override
from kernelexec.config.types import parse_size
from kernelexec.errors import InvalidConfig, did_you_mean

#: Whether kernels on this machine have its network.
_LOCAL_NETWORKS = {"none": False, "host": True}
#: The options of container settings that have another name.
_OPTION_NAMES = {"memory_bytes": "memory", "instance": "instance-id"}

#: The settings of commands with a session of their own, which leaves no files except the code's.
ONE_COMMAND_SETTINGS: dict[str, Any] = {"notebook": False, "journal": False, "save_displays": False, "preload": ()}
#: Those of one cell, which no other one follows.
ONE_CELL_SETTINGS: dict[str, Any] = {**ONE_COMMAND_SETTINGS, "checkpoints": "off"}


def not_blank(value: Any) -> Any:  # noqa: ANN401 - of any kind of option
    """Reject an empty text, also in a list."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.strip():
            raise typer.BadParameter("must not be empty.")
    return value


def absolute_path(text: str) -> Path:
    """Return an absolute path; a ``~`` with the name of no user stays, as in a shell."""
    return Path(os.path.expanduser(text)).absolute()  # noqa: PTH111 - Path's own raises RuntimeError there


def option(names: str, text: str, metavar: str | None = None, *, callback: Callable[[Any], Any] | None = None) -> Any:  # noqa: ANN401 - typer's type
    """Return an option with a text for the help, hidden without a text; spaces separate the names."""
    return typer.Option(*names.split(), metavar=metavar, callback=callback, help=text, hidden=not text)


def complete_session(incomplete: str) -> list[str]:
    """Return the names of the user's open sessions with this beginning, for completion in a shell."""
    from kernelexec.provisioning.runtime.discovery import list_live_sessions
    from kernelexec.provisioning.runtime.owned_directory import runtime_bases

    names = sorted({session.name for session in list_live_sessions(runtime_bases())})
    return [name for name in names if name.startswith(incomplete)]


TimeoutOption = Annotated[float | None, option("--timeout", "Seconds that each cell may run. Default: 60.")]
JsonOption = Annotated[bool, option("--json", "Print results as JSON, one object a line, for programs.")]
ResultJsonOption = Annotated[bool, option("--json", "Print the result as JSON.")]
PicturesOption = Annotated[
    PictureChoice,
    typer.Option(
        "--pictures",
        metavar="auto|kitty|iterm2|sixel|never",
        envvar="KERNELEXEC_PICTURES",
        show_envvar=False,
        show_default=False,
        help="The protocol of pictures on the terminal. Default: auto, or that in KERNELEXEC_PICTURES.",
    ),
]
WorkDirOption = Annotated[
    str | None,
    option("--work-dir", "The working directory of the code.", "DIRECTORY", callback=not_blank),
]


def _option(names: str, text: str = "", metavar: str | None = None, *, default: object = None) -> Any:  # noqa: ANN401 - of any kind
    """Return the field of an option, repeatable with a list as default, hidden without a text."""
    about = option(names, text, metavar, callback=not_blank)
    return field(default_factory=lambda: copy(default), metadata={"option": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationOptions:
    """The options of the command line about where and how code runs."""

    isolation: str | None = _option(
        "--isolation",
        "Where code runs: in a container, or on this machine: 'local' (confined), or 'bubblewrap' (in namespaces).",
        "local|bubblewrap|container",
    )
    execution_mode: str | None = _option("--execution-mode --mode")
    image: str | None = _option("--image", "The image of the kernel's container.", "NAME")
    docker_image: str | None = _option("--docker-image")
    network: str | None = _option(
        "--network",
        "The kernel's network; bridge is for containers. Default: none in containers and bubblewrap, else host.",
        "none|bridge|host",
    )
    sudo: bool = _option(
        "--sudo", "Let code become root in the container by sudo. Uses the image's -sudo variant.", default=False
    )
    enable_sudo: bool = _option("--enable-sudo", default=False)
    memory: str | None = _option("--memory", "The container's memory, as 512m or 1.5g. Default: 1g.", "SIZE")
    cpus: float | None = _option("--cpus", "The container's number of CPUs, as 0.5. Default: 1.", "N")
    gpus: str | None = _option(
        "--gpus", "The container's GPUs: all, a number, or ids with commas between them.", "all|N|ID,..."
    )
    env: list[str] = _option(
        "--env -e",
        "A variable of cells and commands; NAME alone passes this process's on. Repeatable.",
        "NAME[=VALUE]",
        default=[],
    )
    context: list[str] = _option(
        "--context",
        "A file or directory besides the workspace that code can read, or with :rw also write. Repeatable.",
        "PATH[:rw]",
        default=[],
    )
    instance_id: str | None = _option("--instance-id", "A suffix of the container's name, to distinguish runs.", "NAME")
    log_dir: str | None = _option("--log-dir", "The directory of a log of all code and output.", "DIRECTORY")
    allowed_commands: list[str] = _option(
        "--allowed-commands",
        "Allow only shell commands whose beginning matches. Repeatable: one of the expressions must match.",
        "REGEX",
        default=[],
    )
    blocked_commands: list[str] = _option(
        "--blocked-commands", "Refuse shell commands whose beginning matches. Repeatable.", "REGEX", default=[]
    )
    ask: str = _option(
        "--ask", "Ask for approval at the terminal: of refused cells, or of all cells.", "never|refused|always", default="never"
    )
    allowed_paths: list[str] = _option(
        "--allowed-paths",
        "A directory that must contain the working directory, links resolved. Repeatable. Default: anywhere.",
        "DIRECTORY",
        default=[],
    )
    secret: list[str] = _option(
        "--secret",
        "A secret variable of the kernel, whose value is masked in all output. Repeatable.",
        "NAME=env:VARIABLE|file:PATH",
        default=[],
    )
    python: str | None = _option("--python", "The interpreter of the kernel; it needs ipykernel.", "PATH")
    quiet: bool = _option("--quiet", "Print no line about where code runs.", default=False)
    settings: str | None = _option(
        "--config", "A configuration file in YAML, and one of its agents; other options override it.", "FILE[#AGENT]"
    )

    def load_config(self, *, workspace: str | None = None, **options: Any) -> Config:  # noqa: ANN401 - of any kind
        """Return the settings, with further options of ``Config``.

        Raises:
            InvalidConfig: an option is invalid, or options contradict each other.
        """
        container, base = self.container_options(), _read_config_file(self.settings)  # of which set options override the file
        rules = {
            "allowed_commands": self.allowed_commands,
            "blocked_commands": self.blocked_commands,
            "ask": None if self.ask == "never" else self.ask,
        }
        further = {
            "log_dir": self.log_dir,
            "rules": {name: rule for name, rule in rules.items() if rule},
            "context_paths": list(map(_parse_context, self.context)),
            "allowed_paths": self.allowed_paths,
            "secrets": dict(map(_parse_secret, self.secret)),
            "environment": _parse_variables(self.env),
            "python": self.python,
            "quiet": self.quiet,
        }
        options |= {name: value for name, value in further.items() if value}
        isolation = _resolve_alias(self.isolation, self.execution_mode, "--isolation and --execution-mode")
        isolation = (
            isolation or (base.isolation if base is not None else None) or ("container" if "image" in container else None)
        )
        if self.network in _LOCAL_NETWORKS and load(isolation).isolation != "container":
            options["confinement"] = {"network": _LOCAL_NETWORKS[container.pop("network")]}
        if container and (actual := load(isolation).isolation) != "container":
            named = " ".join(f"--{_OPTION_NAMES.get(name, name)}" for name in container)
            message = (
                f"{named}: only for containers, but code runs on this machine (isolation {actual}): "
                "remove it, or choose --isolation container."
            )
            raise InvalidConfig(message)
        inside = container if self.python is None else {**container, "python": self.python}
        options |= {"container": inside} if inside else {}
        return load(isolation, workspace=workspace, config=options if base is None else override(base, options))

    def container_options(self) -> dict[str, Any]:
        """Return the container options by the names of the container's settings."""
        values = {
            "image": _resolve_alias(self.image, self.docker_image, "--image and --docker-image"),
            "network": self.network,
            "sudo": self.sudo or self.enable_sudo or None,
            "memory_bytes": None if self.memory is None else parse_size(self.memory, "--memory"),
            "cpus": self.cpus,
            "gpus": None if self.gpus is None else _parse_gpus(self.gpus),
            "instance": self.instance_id,
        }
        return {name: value for name, value in values.items() if value is not None}


def without_idle_fork_server(config: Config, work_dir: Path) -> Config:
    """Return settings without a fork server if cells in the directory can write this program: none would be used there."""
    if not (config.confines_kernels and config.uses_fork_server):
        return config
    from kernelexec.provisioning.host.fork_server_process import discard_early
    from kernelexec.provisioning.host.interpreters import find_own_import

    if find_own_import([str(work_dir.absolute())]) is None:
        return config
    discard_early()
    return config.model_copy(update={"fork_server": False})


def with_isolation_options(command: Callable[..., int], *, names: Sequence[str] = ()) -> Callable[..., int]:
    """Replace a command's parameter ``isolation_options`` by the fields of the class, or by the named ones."""
    kind, hints, defaults = inspect.Parameter.KEYWORD_ONLY, get_type_hints(IsolationOptions), IsolationOptions()
    signature = inspect.signature(command, eval_str=True)
    command_parameters = [parameter for name, parameter in signature.parameters.items() if name != "isolation_options"]
    shared = [
        inspect.Parameter(
            option.name,
            kind,
            default=getattr(defaults, option.name),
            annotation=Annotated[hints[option.name], option.metadata["option"]],
        )
        for option in fields(IsolationOptions)
        if not names or option.name in names
    ]

    @wraps(command)
    def run(**values: Any) -> int:  # noqa: ANN401 - typer's own types
        isolation_options = IsolationOptions(**{option.name: values.pop(option.name) for option in shared})
        return command(**values, isolation_options=isolation_options)

    parameters = [*(parameter.replace(kind=kind) for parameter in command_parameters), *shared]
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _resolve_alias(value: str | None, alias: str | None, names: str) -> str | None:
    if value is not None and alias is not None and value != alias:
        message = f"{names} are two names of one option, and contradict each other: use only one of them."
        raise InvalidConfig(message)
    return alias if value is None else value


def _read_config_file(option: str | None) -> Config | None:
    """Return the settings of a file's agent, named after ``#``, or by default the only agent.

    Raises:
        InvalidConfig: the file is invalid, or the agent is unknown or ambiguous.
    """
    if option is None:
        return None
    from kernelexec.config.dialects.agents import read_agents

    path, _, name = option.rpartition("#") if "#" in option else (option, "", "")
    agents = read_agents(path)
    if name in agents or (not name and len(agents) == 1):
        return agents[name] if name else next(iter(agents.values()))
    reason = f"it has no agent {name!r}{did_you_mean(name, list(agents))}" if name else "it has several agents"
    message = f"--config {path}: {reason}: use {path}#AGENT with one of {', '.join(agents)}."
    raise InvalidConfig(message)


def _parse_variables(options: Sequence[str]) -> dict[str, Any]:
    """Return the variables with a value, and the names of inherited variables."""
    parts = [option.partition("=") for option in options]
    chosen = {
        "set": {name: value for name, equals, value in parts if equals},
        "pass_names": [n for n, equals, _ in parts if not equals],
    }
    return {name: variables for name, variables in chosen.items() if variables}


def _parse_gpus(option: str) -> str | int | list[str]:
    """Return the GPUs as ``Container.gpus`` takes them."""
    if option == "all":
        return option
    return int(option) if option.isdecimal() and len(option) < 5 else [part.strip() for part in option.split(",")]  # noqa: PLR2004


def _parse_secret(option: str) -> tuple[str, dict[str, str]]:
    """Return the name of a secret and its source. A malformed option is not shown, because it may be the value.

    Raises:
        InvalidConfig: the option is malformed.
    """
    name, _, source = option.partition("=")
    kind, _, location = source.partition(":")
    if not location or kind not in ("env", "file"):
        raise InvalidConfig("--secret: must be NAME=env:VARIABLE or NAME=file:PATH; never the value itself.")
    return name, {kind: location}


def _parse_context(option: str) -> dict[str, Any]:
    """Parse a context path, read-only unless followed by ``:rw``.

    Raises:
        InvalidConfig: the path does not exist.
    """
    path, colon, mode = option.rpartition(":")
    if not colon or mode not in ("rw", "ro"):
        path, mode = option, "ro"
    source = absolute_path(path)
    if not path.strip() or not source.exists():
        message = f"--context {option}: must be an existing file or directory, not {path!r}."
        raise InvalidConfig(message)
    return {"path": source, "permission": "read" if mode == "ro" else "write"}
