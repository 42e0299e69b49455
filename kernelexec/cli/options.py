"""Options that commands share, and the isolation options of all commands that run code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kernelexec.config import Config, load, override
from kernelexec.config.types import parse_size
from kernelexec.errors import InvalidConfig, did_you_mean

#: Other tools' names of isolations.
_ISOLATION_ALIASES = {"docker": "container", "host": "local"}

#: The settings of commands with a session of their own, which leaves no files except the code's.
ONE_COMMAND_SETTINGS: dict[str, Any] = {"notebook": False, "journal": False, "save_displays": False, "fork_server": False}


def not_blank(value: str | None) -> str | None:
    """Reject an empty value."""
    if value is not None and not value.strip():
        raise typer.BadParameter("must not be empty.")
    return value


TimeoutOption = Annotated[float | None, typer.Option("--timeout", help="Seconds that each cell may run. Default: 60.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON, one object a line, for programs.")]
WorkDirOption = Annotated[
    str | None,
    typer.Option("--work-dir", metavar="DIRECTORY", callback=not_blank, help="The working directory of the code."),
]
_NETWORK = "The kernel's network; bridge is for containers. Default: none in containers and bubblewrap, else host."
PythonOption = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", callback=not_blank, help="The interpreter of the kernel; it needs ipykernel."),
]
IsolationOption = Annotated[
    str | None,
    typer.Option(
        "--isolation",
        metavar="local|bubblewrap|container",
        callback=not_blank,
        help="Where code runs: in a container, or on this machine: 'local' (confined), or 'bubblewrap' (in namespaces).",
    ),
]
ImageOption = Annotated[
    str | None, typer.Option("--image", metavar="NAME", callback=not_blank, help="The image of the kernel's container.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationOptions:
    """The options of the command line that decide where and how code runs."""

    isolation: IsolationOption = None
    execution_mode: Annotated[str | None, typer.Option("--execution-mode", "--mode", hidden=True, callback=not_blank)] = None
    image: ImageOption = None
    docker_image: Annotated[str | None, typer.Option("--docker-image", hidden=True, callback=not_blank)] = None
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="none|bridge|host",
            callback=not_blank,
            help=_NETWORK,
        ),
    ] = None
    sudo: Annotated[
        bool, typer.Option("--sudo", help="Let code become root in the container by sudo. Uses the image's -sudo variant.")
    ] = False
    enable_sudo: Annotated[bool, typer.Option("--enable-sudo", hidden=True)] = False
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", callback=not_blank, help="The container's memory, as 512m or 1.5g. Default: 1g."
        ),
    ] = None
    cpus: Annotated[
        float | None, typer.Option("--cpus", metavar="N", help="The container's number of CPUs, as 0.5. Default: 1.")
    ] = None
    context: Annotated[
        list[str],
        typer.Option(
            "--context",
            metavar="PATH[:rw]",
            help="A file or directory besides the workspace that code can read, or with :rw also write. Repeatable.",
        ),
    ] = field(default_factory=list)
    instance_id: Annotated[
        str | None,
        typer.Option(
            "--instance-id",
            metavar="NAME",
            callback=not_blank,
            help="A suffix of the container's name, to distinguish runs.",
        ),
    ] = None
    log_dir: Annotated[
        str | None,
        typer.Option(
            "--log-dir", metavar="DIRECTORY", callback=not_blank, help="The directory of a log of all code and output."
        ),
    ] = None
    allowed_commands: Annotated[
        list[str],
        typer.Option(
            "--allowed-commands",
            metavar="REGEX",
            help="Allow only shell commands whose beginning matches. Repeatable: one of the expressions must match.",
        ),
    ] = field(default_factory=list)
    blocked_commands: Annotated[
        list[str],
        typer.Option(
            "--blocked-commands",
            metavar="REGEX",
            help="Refuse shell commands whose beginning matches. Repeatable.",
        ),
    ] = field(default_factory=list)
    ask: Annotated[
        str,
        typer.Option(
            "--ask", metavar="never|refused|always", help="Ask for approval at the terminal: of refused cells, or of all cells."
        ),
    ] = "never"
    allowed_paths: Annotated[
        list[str],
        typer.Option(
            "--allowed-paths",
            metavar="DIRECTORY",
            help="A directory that must contain the working directory, links resolved. Repeatable. Default: anywhere.",
        ),
    ] = field(default_factory=list)
    secret: Annotated[
        list[str],
        typer.Option(
            "--secret",
            metavar="NAME=env:VARIABLE|file:PATH",
            help="A secret variable of the kernel, whose value is masked in all output. Repeatable.",
        ),
    ] = field(default_factory=list)
    python: PythonOption = None
    settings: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE[#AGENT]",
            callback=not_blank,
            help="A configuration file in YAML, and one of its agents; other options override it.",
        ),
    ] = None

    def load_config(self, *, workspace: str | None = None, **options: Any) -> Config:  # noqa: ANN401 - of any kind
        """Return the settings, with further options of ``Config``.

        Raises:
            InvalidConfig: an option is invalid, or options contradict each other.
        """
        container, base = self._container_options(), _read_config_file(self.settings)
        options |= {} if self.log_dir is None else {"log_dir": self.log_dir}
        lists = {"allowed_commands": self.allowed_commands, "blocked_commands": self.blocked_commands}
        rules: dict[str, Any] = {name: patterns for name, patterns in lists.items() if patterns}
        if self.ask != "never":
            rules["ask"] = self.ask
        if rules:
            options["rules"] = rules
        if self.context:
            options["context_paths"] = list(map(_parse_context, self.context))
        if self.allowed_paths:
            options["allowed_paths"] = self.allowed_paths
        if self.secret:
            options["secrets"] = dict(map(_parse_secret, self.secret))
        if self.python is not None:
            options["python"] = self.python
        isolation = _resolve_alias(self.isolation, self.execution_mode, "--isolation and --execution-mode")
        isolation = _ISOLATION_ALIASES.get(isolation or "", isolation) or (base.isolation if base is not None else None)
        if self.network in _LOCAL_NETWORKS and load(isolation).isolation != "container":
            options["confinement"] = {"network": _LOCAL_NETWORKS[container.pop("network")]}
        inside = {} if self.python is None else {"python": self.python}
        if container or inside:
            options["container"] = container | inside
        if container and (actual := load(isolation).isolation) != "container":
            named = " ".join(f"--{_OPTION_NAMES[name]}" for name in container)
            message = (
                f"{named}: only for containers, but code runs on this machine (isolation {actual}): "
                "remove it, or choose --isolation container."
            )
            raise InvalidConfig(message)
        return load(isolation, workspace=workspace, config=options if base is None else override(base, options))

    def _container_options(self) -> dict[str, Any]:
        """Return the container options by the names of its settings."""
        values = {
            "image": _resolve_alias(self.image, self.docker_image, "--image and --docker-image"),
            "network": self.network,
            "sudo": self.sudo or self.enable_sudo or None,
            "memory_bytes": None if self.memory is None else parse_size(self.memory, "--memory"),
            "cpus": self.cpus,
            "instance": self.instance_id,
        }
        return {name: value for name, value in values.items() if value is not None}


#: Whether kernels on this machine have its network.
_LOCAL_NETWORKS = {"none": False, "host": True}
_OPTION_NAMES = {
    "image": "image",
    "network": "network",
    "sudo": "sudo",
    "memory_bytes": "memory",
    "cpus": "cpus",
    "instance": "instance-id",
}


def with_isolation_options(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameter ``isolation_options`` by the fields of the class."""
    kind, hints = inspect.Parameter.KEYWORD_ONLY, get_type_hints(IsolationOptions, include_extras=True)
    signature = inspect.signature(command, eval_str=True)
    command_parameters = [parameter for name, parameter in signature.parameters.items() if name != "isolation_options"]
    shared = [
        inspect.Parameter(
            option.name, kind, default=[] if option.default is MISSING else option.default, annotation=hints[option.name]
        )
        for option in fields(IsolationOptions)
    ]
    names = {parameter.name for parameter in shared}

    @wraps(command)
    def run(**values: Any) -> int:  # noqa: ANN401 - typer's own types
        isolation_options = IsolationOptions(**{name: values.pop(name) for name in names})
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
    """Return the settings of a file's agent: the one that is named after ``#``, or the only one.

    Raises:
        InvalidConfig: the file is invalid, or the agent is unknown or ambiguous.
    """
    if option is None:
        return None
    from kernelexec.dialects.agents import read_agents

    path, _, name = option.rpartition("#") if "#" in option else (option, "", "")
    agents = read_agents(path)
    if name in agents or (not name and len(agents) == 1):
        return agents[name] if name else next(iter(agents.values()))
    reason = f"it has no agent {name!r}{did_you_mean(name, list(agents))}" if name else "it has several agents"
    message = f"--config {path}: {reason}: use {path}#AGENT with one of {', '.join(agents)}."
    raise InvalidConfig(message)


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
    """Parse a context path, which is read-only unless it ends in ``:rw``.

    Raises:
        InvalidConfig: the path does not exist.
    """
    path, colon, mode = option.rpartition(":")
    if not colon or mode not in ("rw", "ro"):
        path, mode = option, "ro"
    source = Path(path).expanduser().absolute()
    if not path.strip() or not source.exists():
        message = f"--context {option}: must be an existing file or directory, not {path!r}."
        raise InvalidConfig(message)
    return {"path": source, "permission": "read" if mode == "ro" else "write"}
