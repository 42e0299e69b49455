"""Configuration files in YAML: the settings of agents, in our own form or in MassGen's."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Container, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from kernelexec.config import container, settings, short_options
from kernelexec.config.dialects.autogen_config import CodeExecutionConfig, load
from kernelexec.config.dialects.yaml_loader import parse
from kernelexec.config.settings import Config, Isolation
from kernelexec.config.types import check_known, mapping_error, parse_size, short_repr, shorten
from kernelexec.errors import InvalidConfig

_AGENT_OPTIONS = (
    "id",
    "code_execution_config",
    *Config.model_fields,
    *sorted(short_options.NAMES - Config.model_fields.keys()),
)
_FILE_OPTIONS = ("agents", "defaults")
_FILE_BYTES = 1024 * 1024


def read_agents(file: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> dict[str, Config]:
    """Return the complete and checked settings of each agent in a file, in the file's order.

    A file holds the options of a single agent, with the name as ``id`` (``default`` if missing); or a list of agents as
    ``agents``, and optionally ``defaults``, which every agent's options override, branch by branch. In addition to the options
    of ``Config``, an agent may have the ``code_execution_config`` of agent frameworks. Files in MassGen's form, whose agents
    have a ``backend``, are accepted too. Relative paths start at the current directory.

    Booleans are ``true`` and ``false``, or ``yes``, ``no``, ``on`` and ``off``. Versions of YAML read ``1:30``, ``010`` and
    ``1_000`` as different numbers: here they are text, which numeric options reject. Anchors, aliases and merge keys
    (``<<``) are supported.

    Args:
        file: the path of a file in UTF-8, at most 1 MiB.
        environ: see ``load``.

    Raises:
        InvalidConfig: the file cannot be read, is not YAML of either form, or has an unknown or invalid option; the message
            names the file, the agent and the closest known option.
    """
    path = Path(file)
    try:
        content = _parse_file(path)
        agents = _read_massgen_form(content) if _is_massgen(content) else _read_own_form(content)
        return {name: _load_agent(name, options, environ) for name, options in agents.items()}
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {exc}") from exc


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of files in our own form, for editors and other programs."""
    agent = Config.model_json_schema()
    definitions = agent.pop("$defs")
    types = get_type_hints(short_options.ShortOptions)
    short = {"properties": {name: TypeAdapter(each).json_schema() for name, each in types.items()}}
    _describe_options({**definitions, "Config": agent, "ShortOptions": short})
    agent["properties"] = {**short["properties"], **agent["properties"]}
    image = definitions["Container"]["properties"]["image"]
    image |= {"anyOf": [{"type": "string"}, {"type": image.pop("type"), "items": image.pop("items")}]}
    execution = CodeExecutionConfig.model_json_schema()
    definitions |= execution.pop("$defs", {})
    properties = {
        "id": {"type": "string", "description": "The agent's name in the file."},
        "code_execution_config": {
            "anyOf": [execution, {"const": False}],
            "description": "The dictionary of other frameworks, or false for no execution.",
        },
    }
    agent |= {"properties": {**properties, **agent["properties"]}, "title": "Agent"}
    many = {
        "type": "object",
        "properties": {"agents": {"type": "array", "items": {"$ref": "#/$defs/Agent"}}, "defaults": {"$ref": "#/$defs/Agent"}},
        "required": ["agents"],
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kernelexec agents",
        "anyOf": [{"$ref": "#/$defs/Agent"}, many],
        "$defs": {**definitions, "Agent": agent},
    }


def _describe_options(schemas: dict[str, dict[str, Any]]) -> None:
    """Add the texts below the fields of our models, which pydantic would read at each start of a program.

    A field with a model gets the first line of the model's docstring.
    """
    for module in (settings, container, short_options):
        for node in ast.parse(inspect.getsource(module)).body:
            properties = schemas.get(node.name, {}).get("properties", {}) if isinstance(node, ast.ClassDef) else {}
            for field, text in pairwise(node.body if isinstance(node, ast.ClassDef) else ()):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as description)):
                        if name in properties:
                            properties[name]["description"] = inspect.cleandoc(description).replace("\n", " ")
    for schema in schemas.values():
        for field in schema.get("properties", {}).values():
            model = schemas.get(str(field.get("$ref", "")).rpartition("/")[2])
            if model is not None and "description" in model:
                field.setdefault("description", model["description"].splitlines()[0])


def _parse_file(path: Path) -> dict[str, Any]:
    if "\0" in str(path):
        raise InvalidConfig("the path must not contain a NUL character.")
    try:
        if path.exists() and not path.is_file():
            raise InvalidConfig("must be a regular file.")
        with path.open("rb") as stream:
            text = stream.read(_FILE_BYTES + 1)  # one more than allowed: the size of the file may change after a `stat`
    except OSError as exc:
        raise InvalidConfig(f"cannot be read: {exc.strerror}.") from exc
    if len(text) > _FILE_BYTES:
        raise InvalidConfig(f"must not be larger than {_FILE_BYTES} bytes.")
    try:
        content = parse(text.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise InvalidConfig(f"must be YAML: {exc}.") from exc
    if not isinstance(content, dict) or not content:
        raise InvalidConfig("must contain options, as `key: value` lines.")
    return content


def _read_own_form(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if "agents" not in content:
        check_known(content, _AGENT_OPTIONS + _FILE_OPTIONS)
        return {_check_agent_id(content, "default"): content}
    check_known(content, _FILE_OPTIONS)
    defaults, agents = content.get("defaults", {}), content["agents"]
    if not isinstance(defaults, dict):
        raise InvalidConfig(f"defaults: {mapping_error(defaults)}: set the options of all agents, or remove it.")
    if not isinstance(agents, list) or not agents or not all(isinstance(each, dict) for each in agents):
        raise InvalidConfig("agents: must be a list of agents, as `- id: name` lines.")
    check_known(defaults, _AGENT_OPTIONS[1:], "defaults: ")
    named: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(agents, 1):
        name = _check_agent_id(agent, f"agent{number}", named)
        check_known(agent, _AGENT_OPTIONS, f"{shorten(name)}: ")
        named[name] = _merge(defaults, agent)
    return named


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings, branch by branch; values of the second win."""
    joined = dict(first)
    for name, value in second.items():
        old = joined.get(name)
        joined[name] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined


def _load_agent(name: str, options: Mapping[str, Any], environ: Mapping[str, str] | None) -> Config:
    rest = {key: value for key, value in options.items() if key not in {"id", "code_execution_config"}}
    try:
        _check_values_present(options)
        return load(config=rest, code_execution_config=options.get("code_execution_config"), environ=environ)
    except InvalidConfig as exc:
        raise InvalidConfig(f"{shorten(name)}: {exc}") from exc


def _check_values_present(options: Mapping[str, Any]) -> None:
    """Reject options without a value, as in an unfinished line."""
    expected = {"isolation": f"one of {', '.join(get_args(Isolation))}", "code_execution_config": "its options, or false"}
    for key, wanted in expected.items():
        if key in options and options[key] is None:
            raise InvalidConfig(f"{key}: must have a value: {wanted}; or remove it.")


def _check_agent_id(agent: Mapping[str, Any], default: str, others: Container[str] = ()) -> str:
    """Return the ``id`` of an agent, or the default, after a check for use in ``FILE#NAME``."""
    name = agent.get("id", default)
    if not isinstance(name, str) or not name.strip():
        raise InvalidConfig(f"id: {short_repr(name)} must be a name, as in `id: analyst`.")
    if "#" in name:
        raise InvalidConfig(f"id: {short_repr(name)} must not contain '#', which separates file and name in FILE#NAME.")
    if not name.isprintable():
        raise InvalidConfig(f"id: {short_repr(name)} must contain printable characters only.")
    if name in others:
        raise InvalidConfig(f"agents: two agents have the id {short_repr(name)}: every id must be unique.")
    return name


#: Keys for running commands, and the option that each one sets. Keys that need conversion are in ``_SETTERS``.
_MASSGEN_OPTIONS = {
    "enable_mcp_command_line": "enabled",
    "command_line_docker_image": "container.image",
    "command_line_docker_cpu_limit": "container.cpus",
    "command_line_docker_network_mode": "container.network",
    "command_line_docker_enable_sudo": "container.sudo",
    "command_line_allowed_commands": "rules.allowed_commands",
    "command_line_blocked_commands": "rules.blocked_commands",
    "command_execution_prefix": "programs.prefix",
    "command_execution_venv_path": "programs.venv",
    "cwd": "work_dir",
}
_MODES = {"docker": "container", "local": "local"}
#: Keys of a backend that do not concern running commands.
_UNRELATED = (
    # the model
    *("type", "model", "api_key", "base_url", "provider", "organization_id", "api_version", "temperature", "max_tokens"),
    *("max_thinking_tokens", "top_p", "reasoning", "text", "system_message", "system_prompt", "permission_mode"),
    # tools
    *("enable_web_search", "enable_code_interpreter", "enable_code_execution", "enable_code_based_tools"),
    *("custom_tools", "custom_tools_path", "auto_discover_custom_tools", "exclude_custom_tools", "shared_tools_directory"),
    *("mcp_servers", "direct_mcp_servers", "exclude_mcp_servers", "exclude_file_operation_mcps", "concurrent_tool_execution"),
    *("exclude_tools", "allowed_tools", "disallowed_tools", "agent_temporary_workspace", "enable_planning_mode"),
    # media
    *("enable_image_generation", "enable_file_generation", "enable_audio_generation", "enable_video_generation"),
    "enable_multimodal_tools",
)
_ORCHESTRATOR = (
    *("snapshot_storage", "agent_temporary_workspace", "session_storage", "coordination", "dspy", "timeout"),
    *("enable_planning_mode", "planning_mode_instruction", "max_new_answers_per_agent", "max_new_answers_global"),
    *("voting_sensitivity", "answer_novelty_requirement", "skip_coordination_rounds", "debug_final_answer"),
)
_TOP = ("agents", "agent", "orchestrator", "ui", "memory", "timeout_settings")
_ACCESS = {"ro": True, "rw": False}
_CREDENTIALS = {
    "env_file": "environment.env_file",
    "env_vars": "environment.pass_names",
    "pass_all_env": "environment.pass_all",
    "mount": "container.credentials",
}


def _is_massgen(content: object) -> bool:
    """Return whether a file has MassGen's form, in which agents have a ``backend``."""
    if not isinstance(content, Mapping):
        return False
    agents = content.get("agents", [content.get("agent")])
    agents = agents if isinstance(agents, list) else [agents]
    return any(isinstance(each, dict) and "backend" in each for each in agents)


def _read_massgen_form(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    check_known(content, _TOP)
    listed = content["agents"] if "agents" in content else [content["agent"]]
    orchestrator = _mapping(content.get("orchestrator"), "orchestrator")
    check_known(orchestrator, (*_ORCHESTRATOR, "context_paths"), "orchestrator: ")
    named: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(listed, 1):
        options = _mapping(agent, "agents")
        name = _check_agent_id(options, f"agent{number}", named)
        check_known(options, ("id", "backend", "system_message", "name"), f"{shorten(name)}: ")
        backend = _mapping(options.get("backend"), f"{shorten(name)}: backend")
        context = [*_list(orchestrator, "context_paths"), *_list(backend, "context_paths")]
        try:
            options = _backend_options(backend)
        except InvalidConfig as exc:
            raise InvalidConfig(f"{shorten(name)}: {exc}") from exc
        named[name] = options | ({"context_paths": context} if context else {})
    return named


def _backend_options(backend: Mapping[str, Any]) -> dict[str, Any]:
    known = (*_MASSGEN_OPTIONS, *_SETTERS, "context_paths")
    check_known(backend, (*known, *_UNRELATED), "backend: ")
    options: dict[str, Any] = {"isolation": "local", "enabled": False}  # MassGen's defaults
    for key, value in backend.items():
        if key in _MASSGEN_OPTIONS:
            _set_option(options, _MASSGEN_OPTIONS[key], value)
        elif key in _SETTERS:
            _SETTERS[key](options, key, value)
    return options


def _set_mode(options: dict[str, Any], key: str, value: object) -> None:
    if not isinstance(value, str) or value not in _MODES:
        raise InvalidConfig(f"{key}: must be 'docker' or 'local' (given: {short_repr(value)}).")
    options["isolation"] = _MODES[value]


def _set_memory(options: dict[str, Any], key: str, value: object) -> None:
    _set_option(options, "container.memory_bytes", parse_size(value, key))


def _set_credentials(options: dict[str, Any], key: str, value: object) -> None:
    credentials = _mapping(value, key)
    check_known(credentials, ("additional_mounts", "env_vars_from_file", *_CREDENTIALS), f"{key}: ")
    _check_names_of_file(credentials, key)
    for name, option in _CREDENTIALS.items():
        if name in credentials:
            _set_option(options, option, credentials[name])
    mounts = []
    for source, mount_options in _mapping(credentials.get("additional_mounts"), f"{key}.additional_mounts").items():
        where = f"{key}.additional_mounts.{shorten(str(source))}"
        mount = _mapping(mount_options, where)
        check_known(mount, ("bind", "mode"), f"{where}: ")
        mode = mount.get("mode", "ro")
        if not isinstance(mode, str) or mode not in _ACCESS:
            raise InvalidConfig(f"{where}: mode: must be 'ro' or 'rw' (given: {short_repr(mode)}).")
        mounts.append({"source": source, "target": mount.get("bind"), "read_only": _ACCESS[mode]})
    if mounts:
        _set_option(options, "container.mounts", mounts)


def _check_names_of_file(credentials: Mapping[str, Any], key: str) -> None:
    """Reject a selection of variables from a file, because kernels get all variables of the file."""
    where = f"{key}.env_vars_from_file"
    names = _list(credentials, "env_vars_from_file", where)
    if not all(isinstance(name, str) for name in names):
        raise InvalidConfig(f"{where}: must be a list of variable names.")
    if names and credentials.get("env_file") is not None:
        raise InvalidConfig(f"{where}: must be removed, as kernels get all variables of env_file: use a file with only these.")


def _set_packages(options: dict[str, Any], key: str, value: object) -> None:
    packages = _mapping(value, key)
    check_known(packages, ("preinstall", "auto_install_deps"), f"{key}: ")
    wanted = packages.get("auto_install_deps")
    if not isinstance(wanted, bool | None):
        raise InvalidConfig(f"{key}.auto_install_deps: must be true or false (given: {short_repr(wanted)}).")
    if wanted:
        reason = "must be false, as requirements files in a workspace are not installed: list packages under preinstall"
        raise InvalidConfig(f"{key}.auto_install_deps: {reason}.")
    _set_option(options, "programs.preinstall", _mapping(packages.get("preinstall"), f"{key}.preinstall"))


_SETTERS: dict[str, Callable[[dict[str, Any], str, object], None]] = {
    "command_line_execution_mode": _set_mode,
    "command_line_docker_memory_limit": _set_memory,
    "command_line_docker_credentials": _set_credentials,
    "command_line_docker_packages": _set_packages,
}


def _set_option(options: dict[str, Any], path: str, value: object) -> None:
    *branches, last = path.split(".")
    for branch in branches:
        options = options.setdefault(branch, {})
    options[last] = value


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidConfig(f"{where}: {mapping_error(value)}.")
    return value


def _list(mapping: Mapping[str, Any], key: str, where: str = "") -> list[Any]:
    value = mapping.get(key)
    if value is not None and not isinstance(value, list):
        raise InvalidConfig(f"{where or key}: must be a list (given: {short_repr(value)}).")
    return value or []
