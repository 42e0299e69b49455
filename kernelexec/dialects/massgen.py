"""Configuration files of MassGen: their keys for running commands, as options of ``Config``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelexec.config.messages import check_known, mapping_error, short_repr, shorten
from kernelexec.config.types import parse_size
from kernelexec.dialects.agent_ids import check_agent_id
from kernelexec.errors import InvalidConfig

#: Keys for running commands, and the option that each one sets. Keys that need conversion are in ``_SETTERS``.
_OPTIONS = {
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
    "type",
    "model",
    "api_key",
    "base_url",
    "provider",
    "temperature",
    "max_tokens",
    "top_p",
    "reasoning",
    "text",
    "system_message",
    "enable_web_search",
    "enable_code_interpreter",
    "enable_code_execution",
    "enable_planning_mode",
    "agent_temporary_workspace",
    "mcp_servers",
    "exclude_tools",
    "allowed_tools",
    "disallowed_tools",
    "exclude_file_operation_mcps",
    "exclude_mcp_servers",
    "enable_image_generation",
    "enable_file_generation",
    "organization_id",
    "max_thinking_tokens",
    "permission_mode",
    "system_prompt",
    "api_version",
    "custom_tools",
    "custom_tools_path",
    "auto_discover_custom_tools",
    "exclude_custom_tools",
    "enable_code_based_tools",
    "shared_tools_directory",
    "direct_mcp_servers",
    "concurrent_tool_execution",
    "enable_audio_generation",
    "enable_video_generation",
    "enable_multimodal_tools",
)
_ORCHESTRATOR = (
    "snapshot_storage",
    "agent_temporary_workspace",
    "enable_planning_mode",
    "planning_mode_instruction",
    "coordination",
    "dspy",
    "session_storage",
    "max_new_answers_per_agent",
    "max_new_answers_global",
    "voting_sensitivity",
    "answer_novelty_requirement",
    "skip_coordination_rounds",
    "debug_final_answer",
    "timeout",
)
_TOP = ("agents", "agent", "orchestrator", "ui", "memory", "timeout_settings")
_ACCESS = {"ro": True, "rw": False}
_CREDENTIALS = {"env_file": "env_file", "env_vars": "pass_names", "pass_all_env": "pass_all"}


def is_massgen(content: object) -> bool:
    """Return whether a file has MassGen's form, in which agents have a ``backend``."""
    if not isinstance(content, Mapping):
        return False
    agents = content.get("agents", [content.get("agent")])
    agents = agents if isinstance(agents, list) else [agents]
    return any(isinstance(each, dict) and "backend" in each for each in agents)


def read_agents(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each agent.

    Raises:
        InvalidConfig: a key is unknown (the message names the closest known one), or its value has the wrong form.
    """
    check_known(content, _TOP)
    listed = content["agents"] if "agents" in content else [content["agent"]]
    orchestrator = _mapping(content.get("orchestrator"), "orchestrator")
    check_known(orchestrator, (*_ORCHESTRATOR, "context_paths"), "orchestrator: ")
    named: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(listed, 1):
        options = _mapping(agent, "agents")
        name = check_agent_id(options, f"agent{number}", named)
        check_known(options, ("id", "backend", "system_message", "name"), f"{shorten(name)}: ")
        backend = _mapping(options.get("backend"), f"{shorten(name)}: backend")
        context = [*_list(orchestrator, "context_paths"), *_list(backend, "context_paths")]
        try:
            options = _options(backend)
        except InvalidConfig as exc:
            raise InvalidConfig(f"{shorten(name)}: {exc}") from exc
        named[name] = options | ({"context_paths": context} if context else {})
    return named


def _options(backend: Mapping[str, Any]) -> dict[str, Any]:
    known = (*_OPTIONS, *_SETTERS, "context_paths")
    check_known(backend, (*known, *_UNRELATED), "backend: ")
    options: dict[str, Any] = {"isolation": "local", "enabled": False}  # MassGen's defaults
    for key, value in backend.items():
        if key in _OPTIONS:
            _set_option(options, _OPTIONS[key], value)
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
    check_known(credentials, ("mount", "additional_mounts", "env_vars_from_file", *_CREDENTIALS), f"{key}: ")
    _check_names_of_file(credentials, key)
    for name, option in _CREDENTIALS.items():
        if name in credentials:
            _set_option(options, f"environment.{option}", credentials[name])
    if "mount" in credentials:
        _set_option(options, "container.credentials", credentials["mount"])
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
    """Reject a selection of variables from a file, because kernels get all of its variables."""
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
