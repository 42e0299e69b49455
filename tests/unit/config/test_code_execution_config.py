"""``code_execution_config``: the dictionaries of agent frameworks, taken literally, and False for no execution at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec import AsyncExecutor, Disabled, Executor
from kernelexec.config import MIB, Config
from kernelexec.config.dialects.autogen_config import load
from kernelexec.errors import InvalidConfig, InvalidWorkDir
from kernelexec.executor.resources import SessionResources, SessionStart

KX = "KERNELEXEC_USE_DOCKER"
#: The dictionary to the options that it sets, as dotted names.
TAKEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"isolation": "container", "budgets.timeout": 60.0, "work_dir": None, "last_n_messages": "auto"}),
    "containers": ({"use_docker": True}, {"isolation": "container"}),
    "no containers": ({"use_docker": False}, {"isolation": "local"}),
    "a directory": ({"work_dir": "coding", "use_docker": False}, {"isolation": "local", "work_dir": Path("coding")}),
    "a directory as a path": ({"work_dir": Path("coding")}, {"work_dir": Path("coding")}),
    "messages": (
        {"last_n_messages": 2, "work_dir": "groupchat", "use_docker": False},
        {"isolation": "local", "last_n_messages": 2, "work_dir": Path("groupchat")},
    ),
    "all messages": ({"last_n_messages": "auto", "use_docker": False}, {"last_n_messages": "auto"}),
    "no messages": ({"last_n_messages": 0}, {"last_n_messages": 0}),
    "an image": (
        {"work_dir": "web", "use_docker": "python:3", "timeout": 120},
        {"isolation": "container", "container.image": ("python:3",), "budgets.timeout": 120.0},
    ),
    "images": (
        {"use_docker": ["missing:1", "python:3-slim"], "timeout": 2.5},
        {"container.image": ("missing:1", "python:3-slim"), "budgets.timeout": 2.5},
    ),
    "an image by its key": (
        {"docker_image": "python:3.11-slim"},
        {"isolation": "container", "container.image": ("python:3.11-slim",)},
    ),
    "an image by both": ({"use_docker": "a", "docker_image": "a"}, {"container.image": ("a",)}),
    "a name": (
        {"use_docker": True, "docker_image": "a", "docker_container_name": "box"},
        {"isolation": "container", "container.image": ("a",), "container.name": "box"},
    ),
    "a name twice": ({"docker_container_name": "box", "docker_run_args": ["--name=box"]}, {"container.name": "box"}),
    "no arguments": ({"docker_run_args": [], "use_docker": False}, {"isolation": "local"}),
    "none for all": (
        {
            "work_dir": None,
            "use_docker": None,
            "timeout": None,
            "last_n_messages": None,
            "docker_image": None,
            "docker_container_name": None,
            "docker_run_args": None,
        },
        {"isolation": "container", "budgets.timeout": 60.0, "work_dir": None},
    ),
    "the secure example": (
        {
            "work_dir": "secure",
            "use_docker": True,
            "timeout": 30,
            "docker_image": "python:3.11-slim",
            "docker_container_name": "secure-box",
            "docker_run_args": [
                *("--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--memory", "512m", "--cpus", "0.5"),
                *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
            ],
        },
        {
            "isolation": "container",
            "work_dir": Path("secure"),
            "budgets.timeout": 30.0,
            "container.image": ("python:3.11-slim",),
            "container.name": "secure-box",
            "container.network": "none",
            "container.read_only_root": True,
            "container.memory_bytes": 536870912,
            "container.cpus": 0.5,
            "container.cap_add": (),
            "container.sudo": False,
            "container.tmpfs": {},
        },
    ),
}
UNFIT: dict[str, tuple[Any, str]] = {
    "an unknown key": ({"workdir": "a"}, "code_execution_config: workdir is not an option (did you mean 'work_dir'?)."),
    "a misspelt key": ({"use_dockr": True}, "code_execution_config: use_dockr is not an option (did you mean 'use_docker'?)."),
    "an executor": ({"executor": "commandline-local"}, "executor is not an option: choose where code runs with use_docker."),
    "a key that is no text": ({1: 2}, "code_execution_config: 1: "),
    "no directory": ({"work_dir": ""}, "code_execution_config: work_dir: must not be empty"),
    "a number as a directory": ({"work_dir": 5}, "code_execution_config: work_dir: "),
    "no image": ({"use_docker": []}, "code_execution_config: use_docker: must be True, False, an image name or a list"),
    "an empty image": ({"use_docker": [""]}, "code_execution_config: use_docker: must be True, False"),
    "a number as an image": ({"use_docker": 1}, "code_execution_config: use_docker: must be True, False"),
    "text for False": ({"use_docker": "False"}, "(given: 'False')"),
    "no seconds": (
        {"timeout": 0},
        "code_execution_config: timeout: Input should be greater than or equal to 0.001 (given: 0).",
    ),
    "negative seconds": ({"timeout": -1}, "code_execution_config: timeout: "),
    "seconds that are true": ({"timeout": True}, "code_execution_config: timeout: "),
    "seconds as text": ({"timeout": "60"}, "code_execution_config: timeout: "),
    "messages below none": ({"last_n_messages": -1}, "last_n_messages: must be a number >= 0, or 'auto' (given: -1)."),
    "messages in other words": ({"last_n_messages": "all"}, "last_n_messages: must be a number >= 0, or 'auto'"),
    "messages that are true": ({"last_n_messages": True}, "last_n_messages: must be a number"),
    "half a message": ({"last_n_messages": 1.5}, "last_n_messages: must be a number"),
    "an image of two words": ({"docker_image": "a b"}, "container.image: must be an image name"),
    "a list as docker_image": ({"docker_image": ["a"]}, "code_execution_config: docker_image: "),
    "a name of two words": ({"docker_container_name": "a b"}, "docker_container_name: must be 1 to"),
    "arguments as one text": ({"docker_run_args": "--rm"}, "code_execution_config: docker_run_args: "),
    "arguments that are numbers": ({"docker_run_args": ["--cpus", 1]}, "code_execution_config: docker_run_args.1: "),
    "a dangerous argument": ({"docker_run_args": ["--privileged"]}, "docker_run_args: --privileged is refused"),
    "an unfit argument": ({"docker_run_args": ["--memory=1m"]}, "Configuration: container.memory_bytes: "),
    "True": (True, "code_execution_config=True: must be a dictionary, False for no execution, or None."),
    "0": (0, "code_execution_config=0: must be a dictionary"),
    "text": ("coding", "code_execution_config='coding': must be a dictionary"),
    "a list": ([("use_docker", True)], "must be a dictionary"),
}
CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an image without docker": (
        {"code_execution_config": {"use_docker": False, "docker_image": "a"}},
        "use_docker=False and docker_image='a' contradict each other: set only one of them.",
    ),
    "two images": (
        {"code_execution_config": {"use_docker": "a", "docker_image": "b"}},
        "use_docker='a' and docker_image='b' contradict each other: set only one of them.",
    ),
    "images and an image": (
        {"code_execution_config": {"use_docker": ["a", "b"], "docker_image": "b"}},
        "use_docker=('a', 'b') and docker_image='b' contradict each other",
    ),
    "a name without docker": (
        {"code_execution_config": {"use_docker": False, "docker_container_name": "a"}},
        "use_docker=False and docker_container_name contradict each other",
    ),
    "arguments without docker": (
        {"code_execution_config": {"use_docker": False, "docker_run_args": ["-e", "TOKEN=hidden"]}},
        "use_docker=False and docker_run_args contradict each other",
    ),
    "two names": (
        {"code_execution_config": {"docker_container_name": "a", "docker_run_args": ["--name", "b"]}},
        "docker_container_name='a' and --name b contradict each other",
    ),
    "the argument and the key": (
        {"use_docker": False, "code_execution_config": {"use_docker": True}},
        "use_docker=False and use_docker=True contradict each other",
    ),
    "the argument and an image": (
        {"use_docker": False, "code_execution_config": {"docker_image": "a"}},
        "use_docker=False and docker_image='a' contradict each other",
    ),
    "isolation and the key": (
        {"isolation": "container", "code_execution_config": {"use_docker": False}},
        "isolation='container' and use_docker=False contradict each other",
    ),
    "isolation and an image": (
        {"isolation": "local", "code_execution_config": {"docker_image": "a"}},
        "isolation='local' and docker_image='a' contradict each other",
    ),
    "isolation and arguments": (
        {"isolation": "local", "code_execution_config": {"docker_run_args": ["-e", "TOKEN=hidden"]}},
        "isolation='local' and docker_run_args contradict each other",
    ),
}
PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "the environment decides": ({"code_execution_config": {}, "environ": {KX: "0"}}, "local"),
    "None leaves it to the environment": ({"code_execution_config": {"use_docker": None}, "environ": {KX: "0"}}, "local"),
    "the key over the environment": ({"code_execution_config": {"use_docker": True}, "environ": {KX: "0"}}, "container"),
    "the key over garbage": ({"code_execution_config": {"use_docker": False}, "environ": {KX: "maybe"}}, "local"),
    "the key over the mapping": (
        {"code_execution_config": {"use_docker": True}, "config": {"isolation": "local"}},
        "container",
    ),
    "an image over the environment": ({"code_execution_config": {"docker_image": "a"}, "environ": {KX: "0"}}, "container"),
    "arguments over the environment": (
        {"code_execution_config": {"docker_run_args": ["--rm"]}, "environ": {KX: "0"}},
        "container",
    ),
    "the argument and the key": ({"use_docker": True, "code_execution_config": {"use_docker": "a"}}, "container"),
    "isolation and the key": ({"isolation": "local", "code_execution_config": {"use_docker": False}}, "local"),
    "in a container": ({"code_execution_config": {"use_docker": "a"}, "inside": True}, "container"),
    "in a container, with nothing chosen": ({"code_execution_config": {"timeout": 5}, "inside": True}, "container-host"),
}


def option(config: Config, name: str) -> object:
    actual: object = config
    for part in name.split("."):
        actual = getattr(actual, part)
    return actual


@pytest.mark.parametrize(("settings", "expected"), TAKEN.values(), ids=TAKEN)
def test_a_dictionary_is_taken_literally(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    before = dict(settings)
    config = load(code_execution_config=settings, environ={}, inside=False)
    assert {name: option(config, name) for name in expected} == expected
    assert settings == before
    assert config.enabled


@pytest.mark.parametrize(("settings", "answer"), UNFIT.values(), ids=UNFIT)
def test_unknown_and_unfit_settings_are_named(settings: Any, answer: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(code_execution_config=settings, environ={}, inside=False)
    assert answer in str(caught.value)


@pytest.mark.parametrize(("arguments", "answer"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictory_arguments_are_refused(arguments: dict[str, Any], answer: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load(**{"environ": {}, "inside": False, **arguments})
    assert answer in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(("arguments", "expected"), PLACES.values(), ids=PLACES)
def test_where_code_runs_is_chosen_with_the_dictionary(arguments: dict[str, Any], expected: str) -> None:
    assert load(**{"environ": {}, "inside": False, **arguments}).isolation == expected


@pytest.mark.parametrize("as_object", [False, True])
def test_the_dictionary_goes_over_the_configuration_and_leaves_the_rest(as_object: bool) -> None:  # noqa: FBT001
    options: dict[str, Any] = {
        "work_dir": "a",
        "budgets": {"timeout": 5, "grace": 2},
        "container": {"image": "a", "pids": 99, "mounts": [{"source": "/data"}]},
        "environment": {"pass_names": ["C"], "set": {"A": "1", "B": "1"}},
        "profile": "simple",
    }
    settings = {
        "work_dir": "b",
        "timeout": 7,
        "docker_image": "b",
        "docker_run_args": ["-e", "B=2", "-v", "/more:/more", "-m", "1g", "-e", "D", "--ulimit", "nofile=100"],
    }
    config = load(
        config=Config.model_validate(options) if as_object else options,
        code_execution_config=settings,
        environ={},
        inside=False,
    )
    wall = config.container
    assert (config.work_dir, config.budgets.timeout, config.budgets.grace) == (Path("b"), 7.0, 2.0)
    assert (wall.image, wall.pids, wall.memory_bytes, wall.cpus) == (("b",), 99, 1024 * MIB, 0.5)
    assert config.environment.set == {"A": "1", "B": "2"}
    assert [str(mount.source) for mount in wall.mounts] == ["/data", "/more"]
    assert (config.environment.pass_names, config.limits.nofile) == (("C", "D"), 100)


def test_a_branch_that_is_none_is_still_called_unfit() -> None:
    with pytest.raises(InvalidConfig, match="budgets: "):
        load(config={"budgets": 5}, code_execution_config={"timeout": 5}, environ={}, inside=False)


@pytest.mark.parametrize(
    "arguments", [{"code_execution_config": False}, {"config": {"enabled": False}}, {"config": Config(enabled=False)}]
)
def test_execution_can_be_switched_off_whatever_the_environment_says(arguments: dict[str, Any]) -> None:
    assert not load(**arguments, environ={KX: "maybe"}, inside=False).enabled


def test_an_executor_that_is_switched_off_needs_no_engine_and_refuses_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with Executor("container", workspace=tmp_path / "w", code_execution_config=False) as executor:
        with pytest.raises(Disabled, match="switched off for this executor") as caught:
            executor.session()
        assert executor.sessions() == ()
    assert not caught.value.may_have_run
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("work_dir", ["/", "/etc", "/usr/bin", "/proc/self/root", "/home"])
def test_a_container_gets_no_directory_of_the_system_to_write_in(work_dir: str, tmp_path: Path) -> None:
    for config, named in ((Config(workspace=tmp_path), work_dir), (Config(workspace=tmp_path, work_dir=Path(work_dir)), None)):
        with pytest.raises(InvalidWorkDir, match=r"is a system directory\. Name another work_dir"):
            SessionResources.create(SessionStart("s", named), tmp_path, config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("executor", [Executor, AsyncExecutor])
def test_both_executors_take_it(executor: type[Executor | AsyncExecutor]) -> None:
    assert executor(code_execution_config={"use_docker": False, "timeout": 5}).config.budgets.timeout == 5.0
    with pytest.raises(InvalidConfig, match="did you mean 'timeout'"):
        executor(code_execution_config={"tiemout": 5})
