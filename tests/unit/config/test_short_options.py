"""The usual options by their short names: in a configuration, and as keywords of executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor
from kernelexec.config import Config, load
from kernelexec.config.dialects.agents import read_agents
from kernelexec.errors import InvalidConfig

#: A directory that may be mounted.
FOLDER = str(Path(__file__).parent)


def mounts(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"container": {"mounts": [{"source": FOLDER, **entry} for entry in entries]}}


LONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "image": ({"image": "a/b"}, {"container": {"image": "a/b"}}),
    "memory": ({"memory": "2g"}, {"container": {"memory_bytes": 2 * 2**30}}),
    "cpus": ({"cpus": 2}, {"container": {"cpus": 2}}),
    "all gpus": ({"gpus": "all"}, {"container": {"gpus": "all"}}),
    "gpus by id": ({"gpus": ["0", "1"]}, {"container": {"gpus": ("0", "1")}}),
    "quiet": ({"quiet": True}, {"quiet": True}),
    "a network": ({"network": True}, {"container": {"network": "bridge"}, "confinement": {"network": True}}),
    "no network": ({"network": False}, {"container": {"network": "none"}, "confinement": {"network": False}}),
    "a network by name": ({"network": "bridge"}, {"container": {"network": "bridge"}}),
    "timeout": ({"timeout": 5}, {"budgets": {"timeout": 5}}),
    "env": ({"env": {"A": "1"}}, {"environment": {"set": {"A": "1"}}}),
    "packages": ({"packages": ["x"]}, {"programs": {"preinstall": {"python": ["x"]}}}),
    "a context path": ({"context_paths": [FOLDER]}, {"context_paths": [{"path": FOLDER}]}),
    "one context path": ({"context_paths": FOLDER}, {"context_paths": [{"path": FOLDER}]}),
    "a mount": ({"mounts": [FOLDER]}, {"context_paths": [{"path": FOLDER}]}),
    "a mount to write": ({"mounts": f"{FOLDER}:rw"}, {"context_paths": [{"path": FOLDER, "permission": "write"}]}),
    "a mount at its path": ({"mounts": [f"{FOLDER}:{FOLDER}:ro"]}, {"context_paths": [{"path": FOLDER}]}),
    "a mount elsewhere": ({"mounts": [f"{FOLDER}:/b"]}, mounts({"target": "/b", "read_only": False})),
    "volumes": ({"volumes": {FOLDER: {"bind": "/b", "mode": "ro"}}}, mounts({"target": "/b"})),
    "volumes as text": ({"volumes": {FOLDER: "/b"}}, mounts({"target": "/b", "read_only": False})),
    "a list of volumes": ({"volumes": [f"{FOLDER}:/b:ro"]}, mounts({"target": "/b"})),
    "all together": (
        {"mounts": [f"{FOLDER}:/b:ro"], "volumes": [f"{FOLDER}:/c:ro"], "context_paths": [{"path": "/opt"}, "/mnt"]},
        {**mounts({"target": "/b"}, {"target": "/c"}), "context_paths": [{"path": "/opt"}, {"path": "/mnt"}]},
    ),
    "none": ({"memory": None, "env": None}, {}),
    "with others": (
        {"memory": "1g", "container": {"cpus": 2}, "quiet": True},
        {"container": {"memory_bytes": "1g", "cpus": 2}, "quiet": True},
    ),
}


@pytest.mark.parametrize(("short", "long"), LONG.values(), ids=LONG)
def test_a_short_name_is_its_long_one(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert load("container", config=short) == load("container", config=long)


def test_executors_take_them_as_keywords() -> None:
    config = AsyncExecutor("local", timeout=3, env={"A": "1"}, network=False, config={"quiet": True}).config
    expected = {"timeout": 3, "env": {"A": "1"}, "network": False, "quiet": True}
    assert config == load("local", config=expected)


def test_a_keyword_is_stronger_than_the_configuration_and_twice_the_same_is_refused() -> None:
    assert AsyncExecutor("local", timeout=3, config={"timeout": 5}).config.budgets.timeout == 3
    with pytest.raises(InvalidConfig, match=r"timeout and budgets.timeout are the same option: set only one of them"):
        load("local", config={"timeout": 3, "budgets": {"timeout": 5}})
    config = Config(budgets={"timeout": 5}, quiet=True)  # type: ignore[arg-type]
    assert AsyncExecutor("local", timeout=3, config=config).config == load("local", config={"timeout": 3, "quiet": True})


def test_an_image_chooses_containers() -> None:
    assert load(config={"image": "a/b"}, environ={}, inside=True).isolation == "container"
    assert load(config={"image": "a/b"}, environ={"KERNELEXEC_USE_DOCKER": "0"}, inside=False).isolation == "container"
    with pytest.raises(InvalidConfig, match="isolation='local' and image='a/b' contradict each other"):
        load("local", config={"image": "a/b"})


@pytest.mark.parametrize(("name", "value"), [("memory", "2g"), ("cpus", 2)])
def test_options_of_containers_are_refused_elsewhere(name: str, value: Any) -> None:
    message = rf"^{name}={value!r}: only containers have it, and the isolation is local"
    with pytest.raises(InvalidConfig, match=message):
        load("local", config={name: value})
    with pytest.raises(InvalidConfig, match=message):
        AsyncExecutor("local", **{name: value})


@pytest.mark.parametrize(
    "wrong",
    [{"memory": "2x"}, {"cpus": "many"}, {"env": 5}, {"packages": 5}, {"timeout": "soon"}, {"network": 5}, {"memry": 1}],
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="Configuration"):
        load("container", config=wrong)


@pytest.mark.parametrize(("alias", "isolation"), [("docker", "container"), ("host", "local")])
def test_isolations_have_the_names_of_the_command_line(alias: str, isolation: str) -> None:
    assert load(alias).isolation == load(config={"isolation": alias}).isolation == isolation


@pytest.mark.parametrize(("value", "quiet"), [("1", True), ("0", False), ("", False)])
def test_a_variable_silences_all_executors(value: str, quiet: bool) -> None:  # noqa: FBT001
    assert load("local", environ={"KERNELEXEC_QUIET": value}).quiet is quiet
    assert not load("local", environ={"KERNELEXEC_QUIET": value}, config={"quiet": False}).quiet


@pytest.mark.parametrize("gpus", [0, -1, True, 1.5, "", "a b", [], ["all", 1], {"all": 1}])
def test_invalid_gpus_are_refused_in_one_sentence(gpus: Any) -> None:
    with pytest.raises(
        InvalidConfig, match=r"container\.gpus: must be 'all', a number of GPUs from 1 to 1024, or a list of their"
    ):
        load("container", config={"gpus": gpus})


def test_gpus_are_for_containers() -> None:
    with pytest.raises(InvalidConfig, match=r"gpus='all': only containers have it, and the isolation is local\.$"):
        load("local", config={"gpus": "all"})


def test_files_and_models_have_them_too(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("isolation: local\ntimeout: 30\nenv: {A: '1'}\nquiet: true\n")
    [config] = read_agents(file).values()
    assert (config.budgets.timeout, config.environment.set, config.quiet) == (30.0, {"A": "1"}, True)
    options: dict[str, Any] = {"timeout": 30, "env": {"A": "1"}, "gpus": "all"}
    model = Config(**options)
    assert (model.budgets.timeout, model.environment.set, model.container.gpus) == (30.0, {"A": "1"}, "all")
    with pytest.raises(InvalidConfig, match=r"timeout and budgets\.timeout are the same option"):
        Config(timeout=1, budgets={"timeout": 2})  # type: ignore[arg-type,call-arg]  # a wrong one


@pytest.mark.parametrize(
    "value",
    ["", ":/b", f"{FOLDER}:b", f"{FOLDER}:/b:/c", {FOLDER: {"bind": "/b", "kind": "x"}}, {FOLDER: 5}, [f"{FOLDER}:/b:xx"]],
)
def test_invalid_volumes_are_refused_with_the_right_form(value: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^volumes.*must be as in"):
        load("container", config={"volumes": value})


def test_the_home_of_no_user_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="Could not determine home directory"):
        load("container", config={"mounts": ["~no-such-user/a:/b"]})


@pytest.mark.parametrize("isolation", ["local", "bubblewrap"])
def test_only_containers_have_folders_at_other_paths(isolation: str) -> None:
    assert load(isolation, config={"mounts": [FOLDER]}) == load(isolation, config={"context_paths": [FOLDER]})
    with pytest.raises(
        InvalidConfig, match=rf"only containers have other paths, and the isolation is {isolation}: leave the tar"
    ):
        load(isolation, config={"mounts": [f"{FOLDER}:/b"]})
