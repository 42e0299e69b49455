"""Configuration files in YAML: the settings of one or more agents, in our own form or in MassGen's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from kernelexec.config.messages import check_known, mapping_error, shorten
from kernelexec.config.settings import Config, Isolation
from kernelexec.dialects import massgen
from kernelexec.dialects.agent_ids import check_agent_id
from kernelexec.dialects.autogen_config import CodeExecutionConfig, load
from kernelexec.dialects.yaml_loader import parse
from kernelexec.errors import InvalidConfig

_AGENT_OPTIONS = ("id", "code_execution_config", *Config.model_fields)
_FILE_OPTIONS = ("agents", "defaults")
_FILE_BYTES = 1024 * 1024


def read_agents(file: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> dict[str, Config]:
    """Return the complete and checked settings of each agent in a file, in the file's order.

    A file holds the options of one agent, with its name as ``id`` (``default`` if missing); or a list of them as ``agents``,
    and optionally ``defaults``, which every agent's options override, branch by branch. In addition to the options of
    ``Config``, an agent may have the ``code_execution_config`` of agent frameworks. Files in MassGen's form, whose agents have
    a ``backend``, are accepted too. Relative paths start at the current directory.

    Booleans are ``true`` and ``false``, or ``yes``, ``no``, ``on`` and ``off``. Versions of YAML read ``1:30``, ``010`` and
    ``1_000`` as different numbers: here they are text, which numeric options reject. Anchors, aliases and merge keys
    (``<<``) are supported.

    Args:
        file: the path of a file in UTF-8, at most 1 MiB.
        environ: see ``load``.

    Raises:
        InvalidConfig: the file cannot be read, is not YAML of that form, or has an unknown or invalid option; the message names
            the file, the agent and the closest known option.
    """
    path = Path(file)
    try:
        content = _parse_file(path)
        agents = massgen.read_agents(content) if massgen.is_massgen(content) else _read_own_form(content)
        return {name: _load_agent(name, options, environ) for name, options in agents.items()}
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {exc}") from exc


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of files in our own form, for editors and other programs."""
    agent = Config.model_json_schema()
    definitions = agent.pop("$defs")
    image = definitions["Container"]["properties"]["image"]
    definitions["Container"]["properties"]["image"] = {"anyOf": [{"type": "string"}, image], "default": image["default"]}
    execution = CodeExecutionConfig.model_json_schema()
    definitions |= execution.pop("$defs", {})
    properties = {"id": {"type": "string"}, "code_execution_config": {"anyOf": [execution, {"const": False}]}}
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


def _parse_file(path: Path) -> dict[str, Any]:
    if "\0" in str(path):
        raise InvalidConfig("the path must not contain a NUL character.")
    try:
        if path.exists() and not path.is_file():
            raise InvalidConfig("must be a regular file.")
        with path.open("rb") as stream:
            text = stream.read(_FILE_BYTES + 1)
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
        return {check_agent_id(content, "default"): content}
    check_known(content, _FILE_OPTIONS)
    defaults, agents = content.get("defaults", {}), content["agents"]
    if not isinstance(defaults, dict):
        raise InvalidConfig(f"defaults: {mapping_error(defaults)}: set the options of all agents, or remove it.")
    if not isinstance(agents, list) or not agents or not all(isinstance(each, dict) for each in agents):
        raise InvalidConfig("agents: must be a list of agents, as `- id: name` lines.")
    check_known(defaults, _AGENT_OPTIONS[1:], "defaults: ")
    named: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(agents, 1):
        name = check_agent_id(agent, f"agent{number}", named)
        check_known(agent, _AGENT_OPTIONS, f"{shorten(name)}: ")
        named[name] = _merge(defaults, agent)
    return named


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings, branch by branch; values of the second one win."""
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
    for key, wanted in (
        ("isolation", f"one of {', '.join(get_args(Isolation))}"),
        ("code_execution_config", "its options, or false"),
    ):
        if key in options and options[key] is None:
            raise InvalidConfig(f"{key}: must have a value: {wanted}; or remove it.")
