"""Which tools a server has is its operator's to say; packages come from where the operator says, under the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec.mcp.clients import make_server_entry
from kernelexec.mcp.server_options import ALL_TOOLS, GROUPS
from tests.conftest import Command
from tests.support.mcp_clients import ERAS, Agent, connected, text_of
from tests.support.mcp_in_memory import InMemory
from tests.support.mcp_server import TOOLS
from tests.support.pace import until
from tests.support.virtual_environments import made_wheel


def names(agent: Agent) -> list[str]:
    return [tool.name for tool in agent.do("list_tools")]


def test_every_tool_is_in_one_group() -> None:
    tools = [tool for group in GROUPS.values() for tool in group]
    assert sorted(tools) == sorted({*TOOLS, "create_session", "list_sessions"})
    assert tools == ALL_TOOLS.tools


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("settings", "groups"), [("core", ["core"]), ("files, tests", ["core", "tests", "files"])])
def test_only_what_is_named_is_served(settings: str, groups: list[str], era: str, tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--tools", settings), era) as agent:
        assert names(agent) == [tool for group in groups for tool in GROUPS[group]]
        assert ("list_files" in str(agent.client.instructions)) == ("files" in groups)
        assert "list_background" not in names(agent)
        assert agent.call("list_background").is_error


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tools", "core,file", "tools='file' is no group of tools (did you mean 'files'?)"),
        ("--tools", "core,,files", "tools='' is no group of tools"),
        ("--packages-from", "nowhere", "must be a directory of wheels"),
    ],
)
def test_unknown_groups_and_directories_are_refused(
    option: str, value: str, message: str, tmp_path: Path, in_process: Command
) -> None:
    done = in_process(tmp_path, "mcp", "--isolation", "local", option, value)
    assert done.returncode == 125
    assert message in done.stderr


def test_a_clients_entry_has_the_directory_of_wheels_by_its_path_and_the_network_by_its_word() -> None:
    for settings, actual in (("wheels", "/base/wheels"), ("network", "network"), ("/w", "/w")):
        assert make_server_entry(["--packages-from", settings], cwd="/base")["args"][-1] == actual


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("wheels")
    made_wheel(location, "lower", "2.0")
    made_wheel(location, "upper", "3.1", requires="lower>=1", code="import lower")
    return location


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Agent]:
    location = tmp_path_factory.mktemp("packages")
    options = ("--packages-from", str(wheels), "--network", "none", "--blocked-commands", "pip install lower.*")
    with connected(InMemory(location, *options), "auto") as agent:
        yield agent


def install(agent: Agent, *packages: str, **more: Any) -> dict[str, Any]:
    result = agent.call("install_packages", packages=list(packages), **more)
    assert result.structured_content is not None, text_of(result)
    return result.structured_content


def test_packages_are_installed_and_the_state_is_kept(agent: Agent) -> None:
    agent.text("execute_code", code="x = 1", session="a")
    done = install(agent, "upper", session="a")
    assert (done["status"], sorted(done["installed"])) == ("ok", ["lower 2.0", "upper 3.1"])
    assert agent.text("execute_code", code="import upper; x", session="a") == "1"


def test_a_long_installation_goes_on_and_is_collected(agent: Agent) -> None:
    first = install(agent, "upper", session="long", wait=0)
    assert first["status"] == "running"
    assert "call install_packages again" in first["notes"][0]
    answers = [first]

    def has_ended() -> bool:
        answers.append(install(agent, "upper", session="long", wait=5))
        return bool(answers[-1]["status"] != "running")

    until(has_ended)
    assert sorted(answers[-1]["installed"]) == ["lower 2.0", "upper 3.1"]
    assert install(agent, "upper", session="long")["installed"] == []  # a new one, which has nothing to do


def test_missing_packages_are_reported_and_invalid_packages_refused(agent: Agent) -> None:
    missing = agent.call("install_packages", packages=["nowhere-to-be-found"], session="b")
    assert missing.is_error
    assert missing.structured_content is not None
    assert missing.structured_content["status"] == "error"
    assert "nowhere-to-be-found" in missing.structured_content["output"]
    assert "nowhere-to-be-found" in text_of(missing)
    for packages in (["--index-url=x"], [], ["a b c"]):
        assert agent.call("install_packages", packages=packages, session="b").is_error


def test_without_a_source_the_refusal_names_the_operators_option(tmp_path: Path) -> None:
    with connected(InMemory(tmp_path, "--network", "none"), "auto") as agent:
        for package in ("six", "-r requirements.txt"):
            agent.call("write_file", path="requirements.txt", content="six", session="a")
            refused = agent.call("install_packages", packages=[package], session="a")
            assert refused.is_error
            assert "--packages-from network" in text_of(refused)
            assert "wheels=" not in text_of(refused)


def test_the_rules_for_commands_hold_for_installations(agent: Agent) -> None:
    refused = agent.call("install_packages", packages=["lower"], session="c")
    assert refused.is_error
    assert "pip install lower" in text_of(refused)
    assert "ModuleNotFoundError" in agent.text("execute_code", code="import lower", session="c")


def test_wheels_are_those_of_the_sessions_own_workspace(agent: Agent, wheels: Path, tmp_path: Path) -> None:
    for session in ("hers", "d"):
        agent.text("execute_code", code="1", session=session)
    spaces = {row["name"]: Path(row["workspace"]) for row in agent.rows("list_sessions", "sessions")}
    name = made_wheel(spaces["hers"], "secret", "1.0").name
    elsewhere = made_wheel(tmp_path, "secret", "1.0")
    for wheel in (f"../hers/{name}", f" ../hers/{name} ", str(spaces["hers"] / name), str(elsewhere), f"~/{name}"):
        refused = agent.call("install_packages", packages=["upper", wheel], session="d")
        assert refused.is_error, wheel
    assert "ModuleNotFoundError" in agent.text("execute_code", code="import secret", session="d")
    assert install(agent, name, session="hers")["installed"] == ["secret 1.0"]
    made_wheel(spaces["d"], "secret", "1.0")
    assert install(agent, str(spaces["d"] / name), session="d")["installed"] == ["secret 1.0"]
