"""Configuration files in YAML: the settings of one agent, or of several by their names, in our words or in MassGen's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from kernelexec.config.messages import check_known, mapping_wanted, shorten
from kernelexec.config.settings import Config, Isolation
from kernelexec.dialects import massgen
from kernelexec.dialects.agent_ids import agent_id
from kernelexec.dialects.autogen_config import CodeExecutionConfig, load
from kernelexec.dialects.yaml_loader import parse
from kernelexec.errors import InvalidConfig

_AGENT = ("id", "code_execution_config", *Config.model_fields)
_MANY = ("agents", "defaults")
_FILE_BYTES = 1024 * 1024


def read_agents(file: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> dict[str, Config]:
    """Return the settings of each agent in a file, complete and checked, in the file's order.

    A file holds the options of one agent, with its name as ``id`` (``default`` where there is none); or ``agents``, a list of
    such, and ``defaults``, which count for all of them: what an agent says goes over it, branch by branch. Beside the options
    of ``Config`` there may be a ``code_execution_config``, as agent frameworks know it. Files in MassGen's form, whose agents
    have a ``backend``, are taken too. Relative paths count from the current directory.

    Booleans are ``true`` and ``false``, or ``yes``, ``no``, ``on`` and ``off``. Versions of YAML read ``1:30``, ``010`` and
    ``1_000`` as different numbers: these are text here, which options that are numbers refuse. Anchors, aliases and merge keys
    (``<<``) may be used.

    Args:
        file: its path; UTF-8, 1 MiB at most.
        environ: see ``load``.

    Raises:
        InvalidConfig: it cannot be read, is no YAML of that form, or names an option that is unknown or does not fit; the
            message names the file, the agent and the nearest known option.
    """
    path = Path(file)
    try:
        content = _parsed(path)
        agents = massgen.agents(content) if massgen.is_massgen(content) else _agents(content)
        return {name: _config(name, options, environ) for name, options in agents.items()}
    except InvalidConfig as exc:
        raise InvalidConfig(f"{path}: {exc}") from exc


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a file in our own form, for editors and other programs."""
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


def _parsed(path: Path) -> dict[str, Any]:
    if "\0" in str(path):
        raise InvalidConfig("its path holds a NUL character.")
    try:
        if path.exists() and not path.is_file():
            raise InvalidConfig("it is no plain file.")
        with path.open("rb") as opened:
            text = opened.read(_FILE_BYTES + 1)
    except OSError as exc:
        raise InvalidConfig(f"it cannot be read: {exc.strerror}.") from exc
    if len(text) > _FILE_BYTES:
        raise InvalidConfig(f"it is larger than {_FILE_BYTES} bytes.")
    try:
        content = parse(text.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise InvalidConfig(f"it is no YAML: {exc}.") from exc
    if not isinstance(content, dict) or not content:
        raise InvalidConfig("it holds no options: `key: value` lines are expected.")
    return content


def _agents(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if "agents" not in content:
        check_known(content, _AGENT + _MANY)
        return {agent_id(content, "default"): content}
    check_known(content, _MANY)
    defaults, agents = content.get("defaults", {}), content["agents"]
    if not isinstance(defaults, dict):
        raise InvalidConfig(f"defaults: {mapping_wanted(defaults)}: say what counts for all agents, or leave it out.")
    if not isinstance(agents, list) or not agents or not all(isinstance(each, dict) for each in agents):
        raise InvalidConfig("agents: it is a list of agents: `- id: name` lines are expected.")
    check_known(defaults, _AGENT[1:], "defaults: ")
    named: dict[str, dict[str, Any]] = {}
    for number, agent in enumerate(agents, 1):
        name = agent_id(agent, f"agent{number}", named)
        check_known(agent, _AGENT, f"{shorten(name)}: ")
        named[name] = _joined(defaults, agent)
    return named


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings, branch by branch; the second counts."""
    joined = dict(first)
    for name, value in second.items():
        old = joined.get(name)
        joined[name] = _joined(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined


def _config(name: str, options: Mapping[str, Any], environ: Mapping[str, str] | None) -> Config:
    rest = {key: value for key, value in options.items() if key not in {"id", "code_execution_config"}}
    try:
        _check_said(options)
        return load(config=rest, code_execution_config=options.get("code_execution_config"), environ=environ)
    except InvalidConfig as exc:
        raise InvalidConfig(f"{shorten(name)}: {exc}") from exc


def _check_said(options: Mapping[str, Any]) -> None:
    """Refuse an option without a value: an unfinished line."""
    for key, wanted in (
        ("isolation", f"one of {', '.join(get_args(Isolation))}"),
        ("code_execution_config", "its options, or false"),
    ):
        if key in options and options[key] is None:
            raise InvalidConfig(f"{key}: it has no value: say {wanted}, or leave it out.")
