"""The options that commands share, and those of all commands that run code: where, in which container, with which log."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kernelexec.config import Config, load, override
from kernelexec.config.types import size
from kernelexec.errors import InvalidConfig, nearest

#: What other tools call the places where code runs.
_ALSO = {"docker": "container", "host": "local"}

#: The settings of commands whose session is theirs alone: it leaves nothing but what the code makes.
BRIEF: dict[str, Any] = {"notebook": False, "journal": False, "save_displays": False, "fork_server": False}


def filled(value: str | None) -> str | None:
    """Refuse an empty value."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty.")
    return value


TimeoutOption = Annotated[float | None, typer.Option("--timeout", help="Seconds that each cell may run. Default: 60.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print results as JSON, one object a line, for programs.")]
WorkDirOption = Annotated[
    str | None,
    typer.Option("--work-dir", metavar="DIRECTORY", callback=filled, help="The directory that the code runs in."),
]
_NETWORK = "The kernel's network; bridge is for containers. Default: none in containers and bubblewrap, else host."
PythonOption = Annotated[
    str | None,
    typer.Option("--python", metavar="PATH", callback=filled, help="The interpreter of the kernel; it needs ipykernel."),
]
IsolationOption = Annotated[
    str | None,
    typer.Option(
        "--isolation",
        metavar="local|bubblewrap|container",
        callback=filled,
        help="Where code runs: in a container, or on this machine: 'local', confined, or in namespaces of 'bubblewrap'.",
    ),
]
ImageOption = Annotated[
    str | None, typer.Option("--image", metavar="NAME", callback=filled, help="The image of the kernel's container.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationOptions:
    """The options of the command line that decide where and how code runs."""

    isolation: IsolationOption = None
    execution_mode: Annotated[str | None, typer.Option("--execution-mode", "--mode", hidden=True, callback=filled)] = None
    image: ImageOption = None
    docker_image: Annotated[str | None, typer.Option("--docker-image", hidden=True, callback=filled)] = None
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="none|bridge|host",
            callback=filled,
            help=_NETWORK,
        ),
    ] = None
    sudo: Annotated[
        bool, typer.Option("--sudo", help="Let code become root in the container by sudo. The image is the one with -sudo.")
    ] = False
    enable_sudo: Annotated[bool, typer.Option("--enable-sudo", hidden=True)] = False
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", callback=filled, help="The container's memory, as 512m or 1.5g. Default: 1g."),
    ] = None
    cpus: Annotated[
        float | None, typer.Option("--cpus", metavar="N", help="How many processors' time it gets, as 0.5. Default: 1.")
    ] = None
    context: Annotated[
        list[str],
        typer.Option(
            "--context",
            metavar="PATH[:rw]",
            help="A file or directory that it sees besides the workspace, to read, or with :rw to write too. Repeatable.",
        ),
    ] = field(default_factory=list)
    instance_id: Annotated[
        str | None,
        typer.Option(
            "--instance-id", metavar="NAME", callback=filled, help="Put behind the container's name, to tell runs apart."
        ),
    ] = None
    log_dir: Annotated[
        str | None,
        typer.Option(
            "--log-dir", metavar="DIRECTORY", callback=filled, help="Where a log of what ran, and what came out, is kept."
        ),
    ] = None
    allowed_commands: Annotated[
        list[str],
        typer.Option(
            "--allowed-commands",
            metavar="REGEX",
            help="Refuse shell commands that it does not match from their beginning. Repeatable: one of them must match.",
        ),
    ] = field(default_factory=list)
    blocked_commands: Annotated[
        list[str],
        typer.Option(
            "--blocked-commands",
            metavar="REGEX",
            help="Refuse shell commands that it matches from their beginning. Repeatable.",
        ),
    ] = field(default_factory=list)
    ask: Annotated[
        str,
        typer.Option(
            "--ask", metavar="never|refused|always", help="What to ask you about before it runs: what the rules refuse, or all."
        ),
    ] = "never"
    allowed_paths: Annotated[
        list[str],
        typer.Option(
            "--allowed-paths",
            metavar="DIRECTORY",
            help="Where the code's directory may lie, links resolved. Repeatable: one of them. Default: anywhere.",
        ),
    ] = field(default_factory=list)
    secret: Annotated[
        list[str],
        typer.Option(
            "--secret",
            metavar="NAME=env:VARIABLE|file:PATH",
            help="A variable of the kernel whose value is read here, and is masked wherever it comes out again. Repeatable.",
        ),
    ] = field(default_factory=list)
    python: PythonOption = None
    settings: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE[#AGENT]",
            callback=filled,
            help="A configuration file in YAML, and which of its agents; other options go over it.",
        ),
    ] = None

    def config(self, *, workspace: str | None = None, **options: Any) -> Config:  # noqa: ANN401 - of any kind
        """Return the settings, with these options besides.

        Raises:
            InvalidConfig: they do not fit, or not together.
        """
        container, base = self._container(), _read(self.settings)
        options |= {} if self.log_dir is None else {"log_dir": self.log_dir}
        lists = {"allowed_commands": self.allowed_commands, "blocked_commands": self.blocked_commands}
        rules: dict[str, Any] = {name: patterns for name, patterns in lists.items() if patterns}
        if self.ask != "never":
            rules["ask"] = self.ask
        if rules:
            options["rules"] = rules
        if self.context:
            options["context_paths"] = list(map(_context, self.context))
        if self.allowed_paths:
            options["allowed_paths"] = self.allowed_paths
        if self.secret:
            options["secrets"] = dict(map(_secret, self.secret))
        if self.python is not None:
            options["python"] = self.python
        isolation = _one(self.isolation, self.execution_mode, "--isolation and --execution-mode")
        isolation = _ALSO.get(isolation or "", isolation) or (base.isolation if base is not None else None)
        if self.network in _NETWORKS_HERE and load(isolation).isolation != "container":
            options["confinement"] = {"network": _NETWORKS_HERE[container.pop("network")]}
        inside = {} if self.python is None else {"python": self.python}
        if container or inside:
            options["container"] = container | inside
        if container and (there := load(isolation).isolation) != "container":
            named = " ".join(f"--{_NAMES[name]}" for name in container)
            message = (
                f"{named}: this is about containers, and code is to run on this machine (isolation {there}): "
                "leave it out, or choose --isolation container."
            )
            raise InvalidConfig(message)
        return load(isolation, workspace=workspace, config=options if base is None else override(base, options))

    def _container(self) -> dict[str, Any]:
        """Return the options of the container, by the names of its settings."""
        values = {
            "image": _one(self.image, self.docker_image, "--image and --docker-image"),
            "network": self.network,
            "sudo": self.sudo or self.enable_sudo or None,
            "memory_bytes": None if self.memory is None else size(self.memory, "--memory"),
            "cpus": self.cpus,
            "instance": self.instance_id,
        }
        return {name: value for name, value in values.items() if value is not None}


#: Whether kernels on this machine have its network.
_NETWORKS_HERE = {"none": False, "host": True}
_NAMES = {
    "image": "image",
    "network": "network",
    "sudo": "sudo",
    "memory_bytes": "memory",
    "cpus": "cpus",
    "instance": "instance-id",
}


def with_isolation_options(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameter ``isolation_options`` by the options that the class has."""
    kind, hints = inspect.Parameter.KEYWORD_ONLY, get_type_hints(IsolationOptions, include_extras=True)
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "isolation_options"]
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

    parameters = [*(parameter.replace(kind=kind) for parameter in own), *shared]
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _one(value: str | None, alias: str | None, names: str) -> str | None:
    if value is not None and alias is not None and value != alias:
        message = f"{names} are two names for one thing, and contradict each other: give one of them."
        raise InvalidConfig(message)
    return alias if value is None else value


def _read(option: str | None) -> Config | None:
    """Return the settings of a file's agent: the one that is named behind ``#``, or the only one.

    Raises:
        InvalidConfig: the file is wrong, or does not say which.
    """
    if option is None:
        return None
    from kernelexec.dialects.agents import read_agents

    path, _, name = option.rpartition("#") if "#" in option else (option, "", "")
    agents = read_agents(path)
    if name in agents or (not name and len(agents) == 1):
        return agents[name] if name else next(iter(agents.values()))
    reason = f"it has no agent {name!r}{nearest(name, list(agents))}" if name else "it has several agents"
    message = f"--config {path}: {reason}: say {path}#AGENT, of {', '.join(agents)}."
    raise InvalidConfig(message)


def _secret(option: str) -> tuple[str, dict[str, str]]:
    """Return the name of a secret and its source. A malformed option is not shown: it may be the value.

    Raises:
        InvalidConfig: it says neither.
    """
    name, _, source = option.partition("=")
    kind, _, location = source.partition(":")
    if not location or kind not in ("env", "file"):
        raise InvalidConfig("--secret: it is NAME=env:VARIABLE or NAME=file:PATH; the value itself is never given here.")
    return name, {kind: location}


def _context(option: str) -> dict[str, Any]:
    """Return a context path, for reading only unless it ends in ``:rw``.

    Raises:
        InvalidConfig: nothing is there.
    """
    path, colon, mode = option.rpartition(":")
    if not colon or mode not in ("rw", "ro"):
        path, mode = option, "ro"
    source = Path(path).expanduser().absolute()
    if not path.strip() or not source.exists():
        message = f"--context {option}: there is no file or directory {path!r}."
        raise InvalidConfig(message)
    return {"path": source, "permission": "read" if mode == "ro" else "write"}
