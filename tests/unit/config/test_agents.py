"""Configuration files: every example loads and runs, every typo is named, and the schema takes what the reader takes."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it comes without types
import pytest
import yaml

from kernelexec import Config
from kernelexec.config.dialects.agents import json_schema, read_agents
from kernelexec.errors import InvalidConfig
from tests.support.paths import ROOT

EXAMPLES = sorted((ROOT / "notebooks" / "configs").glob("*.yaml"))
MASSGEN = sorted((ROOT / "tests/unit/config/massgen").glob("*.yaml"))


def read(tmp_path: Path, text: str) -> dict[str, Config]:
    path = tmp_path / "agents.yaml"
    path.write_text(text, encoding="utf-8")
    return read_agents(path, environ={})


def test_massgen_keys_become_our_options() -> None:
    both = read_agents(ROOT / "tests/unit/config/massgen" / "docker.yaml", environ={})
    first, second = both["agent_a"], both["agent_b"]
    wall = first.container
    assert (first.isolation, str(first.work_dir)) == ("container", "workspace_a")
    assert (wall.image, wall.memory_bytes, wall.cpus) == (("kernelexec/agent",), 2 * 2**30, 1.5)
    assert (wall.network, wall.sudo, wall.credentials) == ("none", False, ("git_config",))
    assert first.environment.pass_names == ("LANG",)
    assert (second.isolation, second.enabled) == ("local", True)
    assert [pattern.pattern for pattern in second.rules.blocked_commands] == ["rm.*"]
    assert [str(each.path) for each in second.context_paths] == ["/usr/share/doc"]
    assert second.context_paths[0].permission == "read"


def test_a_massgen_agent_that_does_not_ask_for_commands_has_none(tmp_path: Path) -> None:
    actual = read(tmp_path, "agents:\n  - id: a\n    backend: {type: openai, model: m}\n")
    assert not actual["a"].enabled


def test_defaults_count_for_all_and_an_agent_goes_over_them(tmp_path: Path) -> None:
    agents = "agents:\n  - id: a\n  - {id: b, budgets: {timeout: 5}}\n"
    actual = read(tmp_path, "defaults: {isolation: local, budgets: {timeout: 9, grace: 1}}\n" + agents)
    assert [(each.budgets.timeout, each.budgets.grace) for each in actual.values()] == [(9, 1), (5, 1)]
    assert list(actual) == ["a", "b"]


def test_without_a_name_it_is_the_default_one(tmp_path: Path) -> None:
    assert list(read(tmp_path, "isolation: local\n")) == ["default"]


def keys(path: Path) -> list[tuple[Any, ...]]:
    """The place of every option of ours in an example."""

    def walk(settings: Any, directory: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        pairs = settings.items() if isinstance(settings, dict) else enumerate(settings) if isinstance(settings, list) else ()
        return [actual for key, value in pairs for actual in [(*directory, key), *walk(value, (*directory, key))]]

    free = {"secrets", "profiles", "ui"}  # what is in them has names of the user's, or is not for us
    places = walk(yaml.safe_load(path.read_text(encoding="utf-8")), ())
    return [directory for directory in places if isinstance(directory[-1], str) and not free & {*directory[:-1]}]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in (*EXAMPLES, *MASSGEN)])
def test_a_typo_in_any_key_names_the_right_one(path: Path, tmp_path: Path) -> None:
    for directory in keys(path):
        if directory[-1] in {"agents", "agent", "backend", "id"} and directory[:-1] in {
            (),
            ("agents", 0),
            ("agents", 1),
            ("agent",),
        }:
            continue  # without these it is another kind of file, or nameless
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        inner = settings
        for part in directory[:-1]:
            inner = inner[part]
        wrong = directory[-1][:-2] + directory[-1][-1] + "x" if len(directory[-1]) > 3 else directory[-1] + "x"
        inner[wrong] = inner.pop(directory[-1])
        with pytest.raises(InvalidConfig) as caught:
            read(tmp_path, yaml.safe_dump(settings))
        assert f"did you mean {directory[-1]!r}?" in str(caught.value), directory


UNFIT = {
    "nothing": ("", "must contain options"),
    "a list": ("- a\n", "must contain options"),
    "no YAML": ("a: [1\n", "must be YAML"),
    "a tag": ("a: !!python/object/apply:os.system ['true']\n", "must be YAML"),
    "twice": ("isolation: local\nisolation: container\n", "line 2: 'isolation' is set twice"),
    "a list for a branch": ("budgets: [{timeout: 5}]\n", "budgets: must be `key: value` pairs, not a list."),
    "text for a branch": ("container: small\n", "container: must be `key: value` pairs, not text."),
    "a list for names": ("environment: {set: [a]}\n", "environment.set: must be `key: value` pairs, not a list."),
    "a mapping for a list": ("context_paths: {path: x}\n", "context_paths: must be a list, not `key: value` pairs."),
    "nothing for a branch": ("budgets:\n", "budgets: must be `key: value` pairs, not nothing."),
    "a list for MassGen's backend": ("agents: [{backend: [a]}]\n", "backend: must be `key: value` pairs, not a list."),
    "text for MassGen's list": ("agents: [{backend: {context_paths: ''}}]\n", "context_paths: must be a list"),
    "empty defaults": ("defaults: ''\nagents: [{id: a}]\n", "defaults: must be `key: value` pairs, not text"),
    "no defaults": ("defaults:\nagents: [{id: a}]\n", "defaults: must be `key: value` pairs, not nothing"),
    "no place": ("isolation:\n", "isolation: must have a value: one of local, "),
    "no place over another": (
        "defaults: {isolation: local}\nagents: [{isolation: ~}]\n",
        "agent1: isolation: must have a value",
    ),
    "no execution": (
        "isolation: local\ncode_execution_config:\n",
        "code_execution_config: must have a value: its options, or",
    ),
    "a sign in a name": ("id: a#b\n", "id: 'a#b' must not contain '#', which separates file and name in FILE#NAME"),
    "a sign in MassGen's name": ("agents: [{id: a#b, backend: {}}]\n", "id: 'a#b' must not contain '#'"),
    "a bell in a name": ('id: "a\\ab"\n', "id: 'a\\x07b' must contain printable characters only"),
    "lines in MassGen's name": ('agents: [{id: "a\\nb", backend: {}}]\n', "id: 'a\\nb' must contain printable characters"),
    "an empty name of MassGen's": ("agents: [{id: '', backend: {}}]\n", "id: '' must be a name"),
    "two of MassGen's names": ("agents: [{id: a, backend: {}}, {id: a, backend: {}}]\n", "two agents have the id 'a'"),
    "two of a name": ("agents:\n  - {id: a, isolation: local}\n  - {id: a}\n", "two agents have the id 'a'"),
    "no agents": ("agents: []\n", "agents: must be a list of agents"),
    "a nameless name": ("id: 5\n", "id: 5 must be a name"),
    "an unfit value": ("budgets: {timeout: soon}\n", "default: Configuration: budgets.timeout: "),
    "an unfit mode": ("agents:\n  - backend: {command_line_execution_mode: vm}\n", "must be 'docker' or 'local'"),
    "an unfit mode of a mount": (
        "agents:\n  - backend: {command_line_docker_credentials: {additional_mounts: {/a: {bind: /b, mode: rox}}}}\n",
        "command_line_docker_credentials.additional_mounts./a: mode: must be 'ro' or 'rw' (given: 'rox')",
    ),
    "some variables of MassGen's file": (
        "agents:\n  - backend: {command_line_docker_credentials: {env_file: .env, env_vars_from_file: [A]}}\n",
        "env_vars_from_file: must be removed, as kernels get all variables of env_file",
    ),
    "no names of MassGen's file": (
        "agents:\n  - backend: {command_line_docker_credentials: {env_vars_from_file: A}}\n",
        "command_line_docker_credentials.env_vars_from_file: must be a list",
    ),
    "numbers for names of MassGen's file": (
        "agents:\n  - backend: {command_line_docker_credentials: {env_vars_from_file: [5]}}\n",
        "env_vars_from_file: must be a list of variable names",
    ),
    "packages by MassGen's own finding": (
        "agents:\n  - backend: {command_line_docker_packages: {auto_install_deps: true}}\n",
        "command_line_docker_packages.auto_install_deps: must be false",
    ),
    "no choice": (
        "agents:\n  - backend: {command_line_docker_packages: {auto_install_deps: maybe}}\n",
        "auto_install_deps: must be true or false (given: 'maybe')",
    ),
    "an unfit access of a mount": (
        "agents:\n  - backend: {command_line_docker_credentials: {additional_mounts: {/a: {bind: /b, mode: true}}}}\n",
        "mode: must be 'ro' or 'rw' (given: True)",
    ),
    "no bytes": (
        "agents:\n  - {id: a, backend: {command_line_docker_memory_limit: lots}}\n",
        "agents.yaml: a: command_line_docker_memory_limit='lots': must be a size",
    ),
    "an empty rule": (
        "rules: {allowed_commands: [ls, '']}\n",
        "rules.allowed_commands.1: must not be empty, as it would match everything",
    ),
    "an empty rule of MassGen's": (
        "agents: [{id: a, backend: {command_line_blocked_commands: ['']}}]\n",
        "a: Configuration: rules.blocked_commands.0: must not be empty",
    ),
}


@pytest.mark.parametrize(("text", "message"), UNFIT.values(), ids=UNFIT)
def test_a_file_that_is_wrong_is_refused_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "agents.yaml" in str(caught.value)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_agents(tmp_path / "no.yaml")
    with pytest.raises(InvalidConfig, match="larger than"):
        read(tmp_path, "#" * 2**20 + "\nisolation: local\n")


@cache
def schema_validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in EXAMPLES])
def test_the_schema_takes_every_example(path: Path) -> None:
    validator = schema_validator()
    validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert not validator.is_valid({"isolatoin": "local"})


@pytest.mark.parametrize(
    "text",
    [
        "budgets: {timeout: !!int abc}",
        "isolation: !!timestamp abc",
        "isolation: !!bool abc",
        f"a: {'9' * 5001}",
        f"a: 0x{'f' * 5001}",
        f"a: !!int 0x{'f' * 5001}",
    ],
)
def test_a_value_that_yaml_cannot_make_is_one_line_with_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(InvalidConfig, match=r"odd\.yaml: must be YAML") as reported:
        read_agents(tmp_path / "odd.yaml")
    assert "\n" not in str(reported.value)


def test_irregular_agent_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidConfig, match="must be a regular file"):
            read_agents(path)
    with pytest.raises(InvalidConfig, match="NUL"):
        read_agents("agents\0.yaml")


LONG = "x" * 300


@pytest.mark.parametrize(
    "text",
    [
        f"isolation: {LONG}",
        f"{LONG}: 1",
        f"{LONG}: 1\n{LONG}: 2",
        f"budgets: {{timeout: {LONG}}}",
        f"budgets: {{{LONG}: 1}}",
        f"profile: {LONG}",
        f"id: {LONG}\nbudgets: 5",
        f"agents: [{{id: {LONG}, a: 1}}]",
        f"agents: [{{id: {LONG}}}, {{id: {LONG}}}]",
        f"agents: [{{id: {LONG}#}}]",
        f"agents: [{{id: {LONG}, backend: {{a: 1}}}}]",
        f"agents: [{{backend: {{command_line_docker_memory_limit: {LONG}}}}}]",
        f"agents: [{{backend: {{command_line_execution_mode: {LONG}}}}}]",
        f"agents: [{{backend: {{context_paths: {LONG}}}}}]",
        f"code_execution_config: {{use_docker: [{LONG}, 5]}}",
        f"code_execution_config: [{LONG}]",
        f"budgets: {{timeout: !!int {LONG}}}",
        f"budgets: !{LONG} a",
        f"budgets: {{timeout: 1_{'0' * 300}}}",
    ],
)
def test_long_values_are_shown_by_their_beginning(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read(tmp_path, text + "\n")
    message = str(caught.value)
    assert "..." in message
    assert "x" * 121 not in message
    assert len(message.removeprefix(f"{tmp_path}/agents.yaml: ")) < 260


def test_every_option_of_the_schema_is_described() -> None:
    schema = json_schema()
    fields = {
        f"{name}.{option}": field
        for name, part in schema["$defs"].items()
        for option, field in part.get("properties", {}).items()
        if name != "CodeExecutionConfig"
    }
    assert len(fields) > 90
    assert [name for name, field in fields.items() if not field.get("description")] == []
    assert fields["Budgets.timeout"]["description"].startswith("How long a cell may run: wall-clock time from its start; ")
    assert fields["Agent.memory"]["description"].startswith("The memory of a container in bytes")
