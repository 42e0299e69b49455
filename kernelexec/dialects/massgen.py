"""Configuration files of MassGen: its keys for running commands, as options of ``Config``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernelexec.config.messages import check_known, mapping_wanted, short_repr, shorten
from kernelexec.config.types import size
from kernelexec.dialects.agent_ids import agent_id
from kernelexec.errors import InvalidConfig

#: Keys for running commands, and the option that each sets; those that need more are in ``_BRANCHES``.
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
#: Keys of a backend and of an orchestrator that say nothing of running commands.
_OTHERS = (
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


def is_massgen(given: object) -> bool:
    """Whether what a file says is in MassGen's form: its agents have a ``backend``."""
    if not isinstance(given, Mapping):
        return False
    agents = given.get("agents", [given.get("agent")])
    agents = agents if isinstance(agents, list) else [agents]
    return any(isinstance(each, dict) and "backend" in each for each in agents)


def agents(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of each agent.

    Raises:
        InvalidConfig: an unknown key, with the nearest known one; or one in another form than MassGen's.
    """
    check_known(given, _TOP)
    listed = given["agents"] if "agents" in given else [given["agent"]]
    orchestrator = _mapping(given.get("orchestrator"), "orchestrator")
    check_known(orchestrator, (*_ORCHESTRATOR, "context_paths"), "orchestrator: ")
    found: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(listed, 1):
        said = _mapping(agent, "agents")
        name = agent_id(said, f"agent{number}", found)
        check_known(said, ("id", "backend", "system_message", "name"), f"{shorten(name)}: ")
        backend = _mapping(said.get("backend"), f"{shorten(name)}: backend")
        context = [*_list(orchestrator, "context_paths"), *_list(backend, "context_paths")]
        try:
            options = _options(backend)
        except InvalidConfig as exc:
            raise InvalidConfig(f"{shorten(name)}: {exc}") from exc
        found[name] = options | ({"context_paths": context} if context else {})
    return found


def _options(backend: Mapping[str, Any]) -> dict[str, Any]:
    known = (*_OPTIONS, *_BRANCHES, "context_paths")
    check_known(backend, (*known, *_OTHERS), "backend: ")
    options: dict[str, Any] = {"isolation": "local", "enabled": False}  # as MassGen has it unless told
    for key, value in backend.items():
        if key in _OPTIONS:
            _put(options, _OPTIONS[key], value)
        elif key in _BRANCHES:
            _BRANCHES[key](options, key, value)
    return options


def _mode(options: dict[str, Any], key: str, value: object) -> None:
    if not isinstance(value, str) or value not in _MODES:
        raise InvalidConfig(f"{key}: it is 'docker' or 'local' (given: {short_repr(value)}).")
    options["isolation"] = _MODES[value]


def _memory(options: dict[str, Any], key: str, value: object) -> None:
    _put(options, "container.memory_bytes", size(value, key))


def _credentials(options: dict[str, Any], key: str, value: object) -> None:
    given = _mapping(value, key)
    check_known(given, ("mount", "additional_mounts", "env_vars_from_file", *_CREDENTIALS), f"{key}: ")
    _check_names_of_file(given, key)
    for name, option in _CREDENTIALS.items():
        if name in given:
            _put(options, f"environment.{option}", given[name])
    if "mount" in given:
        _put(options, "container.credentials", given["mount"])
    mounts = []
    for source, said in _mapping(given.get("additional_mounts"), f"{key}.additional_mounts").items():
        where = f"{key}.additional_mounts.{shorten(str(source))}"
        mount = _mapping(said, where)
        check_known(mount, ("bind", "mode"), f"{where}: ")
        mode = mount.get("mode", "ro")
        if not isinstance(mode, str) or mode not in _ACCESS:
            raise InvalidConfig(f"{where}: mode: it is 'ro' or 'rw' (given: {short_repr(mode)}).")
        mounts.append({"source": source, "target": mount.get("bind"), "read_only": _ACCESS[mode]})
    if mounts:
        _put(options, "container.mounts", mounts)


def _check_names_of_file(given: Mapping[str, Any], key: str) -> None:
    """Of a file all variables are handed on: where only some were meant, that would tell code what it is not to know."""
    where = f"{key}.env_vars_from_file"
    names = _list(given, "env_vars_from_file", where)
    if not all(isinstance(name, str) for name in names):
        raise InvalidConfig(f"{where}: it is a list of variables' names.")
    if names and given.get("env_file") is not None:
        raise InvalidConfig(f"{where}: all of env_file is handed on: name a file with only these in it, and leave this out.")


def _packages(options: dict[str, Any], key: str, value: object) -> None:
    given = _mapping(value, key)
    check_known(given, ("preinstall", "auto_install_deps"), f"{key}: ")
    wanted = given.get("auto_install_deps")
    if not isinstance(wanted, bool | None):
        raise InvalidConfig(f"{key}.auto_install_deps: it is true or false (given: {short_repr(wanted)}).")
    if wanted:
        why = "no file of a workspace has its packages installed here: name them under preinstall, and leave this out"
        raise InvalidConfig(f"{key}.auto_install_deps: {why}.")
    _put(options, "programs.preinstall", _mapping(given.get("preinstall"), f"{key}.preinstall"))


_BRANCHES: dict[str, Callable[[dict[str, Any], str, object], None]] = {
    "command_line_execution_mode": _mode,
    "command_line_docker_memory_limit": _memory,
    "command_line_docker_credentials": _credentials,
    "command_line_docker_packages": _packages,
}


def _put(options: dict[str, Any], path: str, value: object) -> None:
    *branches, last = path.split(".")
    for branch in branches:
        options = options.setdefault(branch, {})
    options[last] = value


def _mapping(given: object, where: str) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidConfig(f"{where}: {mapping_wanted(given)}.")
    return given


def _list(given: Mapping[str, Any], key: str, where: str = "") -> list[Any]:
    value = given.get(key)
    if value is not None and not isinstance(value, list):
        raise InvalidConfig(f"{where or key}: a list is expected (given: {short_repr(value)}).")
    return value or []
