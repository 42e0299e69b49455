"""Where code runs: containers unless set otherwise, by argument, by configuration, by environment, in this order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec.config import Config, in_container, isolation_help, load
from kernelexec.errors import InvalidConfig

KX, AG, FORCE = "KERNELEXEC_USE_DOCKER", "AUTOGEN_USE_DOCKER", "KERNELEXEC_FORCE_CONTAINER"
TRUE = ["1", "true", "yes", "t", "True", "TRUE", "YES", "T", " 1 "]
FALSE = ["0", "false", "no", "f", "False", "NO", "F", " 0 ", "\tfalse\n"]
NOTHING = ["", " ", "none", "None", "NONE"]
JUNK = ["maybe", "2", "-1", "truee", "on", "null", "0.0", "yes please"]
LOCAL: dict[str, dict[str, Any]] = {
    "isolation": {"isolation": "local"},
    "use_docker": {"use_docker": False},
    "a mapping": {"config": {"isolation": "local"}},
    "an object": {"config": Config(isolation="local")},
    "the environment": {"environ": {KX: "0"}},
    "the other name": {"environ": {AG: "0"}},
    "both say the same": {"isolation": "local", "use_docker": False},
    "isolation over the mapping": {"isolation": "local", "config": {"isolation": "container"}},
    "isolation over the environment": {"isolation": "local", "environ": {KX: "1", AG: "1"}},
    "isolation over garbage": {"isolation": "local", "environ": {KX: "maybe", FORCE: "maybe"}},
    "use_docker over the environment": {"use_docker": False, "environ": {KX: "1"}},
    "use_docker over garbage": {"use_docker": False, "environ": {KX: "maybe", AG: "maybe", FORCE: "maybe"}},
    "use_docker over the mapping": {"use_docker": False, "config": {"isolation": "container"}},
    "the mapping over the environment": {"config": {"isolation": "local"}, "environ": {KX: "1"}},
    "the first name over the second": {"environ": {KX: "0", AG: "1"}},
    "the first name over garbage in the second": {"environ": {KX: "0", AG: "maybe"}},
    "the second name where the first is empty": {"environ": {KX: "", AG: "false"}},
    "the second name where the first is none": {"environ": {KX: "None", AG: "false"}},
    "the environment, though containers are forced": {"environ": {KX: "0", FORCE: "1"}},
}
#: What chooses nothing: in a container it means the container that is there.
UNSET: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a mapping without isolation": {"config": {"notebook": False}},
    "an object without isolation": {"config": Config()},
    "names that say nothing": {"environ": {KX: " ", AG: "none"}},
}
NAMED: dict[str, dict[str, Any]] = {
    "use_docker": {"use_docker": True},
    "an image": {"use_docker": "an/image"},
    "images": {"use_docker": ["an/image", "another"]},
    "an image in a mapping": {"config": {"image": "an/image"}},
    "use_docker over the environment": {"use_docker": True, "environ": {KX: "0", AG: "0"}},
    "use_docker over garbage": {"use_docker": True, "environ": {KX: "maybe"}},
    "use_docker over the mapping": {"use_docker": True, "config": {"isolation": "local"}},
    "use_docker over a mapping that says the same": {"use_docker": True, "config": {"isolation": "container"}},
    "the environment": {"environ": {KX: "1"}},
    "the other name": {"environ": {AG: "yes"}},
    "the first name over the second": {"environ": {KX: "1", AG: "0"}},
    "isolation": {"isolation": "container"},
    "both say the same": {"isolation": "container", "use_docker": True},
    "a mapping": {"config": {"isolation": "container"}},
    "an object": {"config": Config(isolation="container")},
    "isolation over the mapping": {"isolation": "container", "config": {"isolation": "local"}},
    "isolation over the environment": {"isolation": "container", "environ": {KX: "0"}},
    "isolation over garbage": {"isolation": "container", "environ": {KX: "maybe", FORCE: "maybe"}},
    "the mapping over the environment": {"config": {"isolation": "container"}, "environ": {KX: "0", FORCE: "0"}},
}
HOST: dict[str, dict[str, Any]] = {
    "isolation": {"isolation": "container-host"},
    "a mapping": {"config": {"isolation": "container-host"}},
    "with use_docker": {"isolation": "container-host", "use_docker": True},
    "without docker": {"isolation": "container-host", "use_docker": False},
}


def place(**arguments: Any) -> str:
    return load(**{"environ": {}, "inside": False, **arguments}).isolation


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("arguments", LOCAL.values(), ids=LOCAL)
def test_local_execution_is_chosen_by(arguments: dict[str, Any], inside: bool) -> None:  # noqa: FBT001
    assert place(**arguments, inside=inside) == "local"


@pytest.mark.parametrize("arguments", UNSET.values(), ids=UNSET)
def test_containers_not_asked_for_are_containers_unless_one_is_there(arguments: dict[str, Any]) -> None:
    assert place(**arguments, inside=False) == "container"
    assert place(**arguments, inside=True) == "container-host"


@pytest.mark.parametrize("forced", TRUE)
@pytest.mark.parametrize("arguments", UNSET.values(), ids=UNSET)
def test_containers_can_be_forced_within_one(arguments: dict[str, Any], forced: str) -> None:
    environ = {**arguments.get("environ", {}), FORCE: forced}
    assert place(**{**arguments, "environ": environ}, inside=True) == "container"


@pytest.mark.parametrize("unforced", [*FALSE, *NOTHING])
def test_a_force_that_is_off_forces_nothing(unforced: str) -> None:
    assert place(environ={FORCE: unforced}, inside=True) == "container-host"


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("arguments", NAMED.values(), ids=NAMED)
def test_containers_asked_for_are_containers_everywhere(arguments: dict[str, Any], inside: bool) -> None:  # noqa: FBT001
    assert place(**arguments, inside=inside) == "container"


@pytest.mark.parametrize("arguments", HOST.values(), ids=HOST)
def test_the_container_that_is_there_can_be_chosen_where_there_is_one(arguments: dict[str, Any]) -> None:
    assert place(**arguments, inside=True) == "container-host"
    with pytest.raises(InvalidConfig, match="isolation='container-host': this process does not run in a container"):
        place(**arguments, inside=False)


@pytest.mark.parametrize("inside", [False, True])
def test_settings_that_are_complete_say_the_same_when_they_are_loaded_again(inside: bool) -> None:  # noqa: FBT001
    config = load(environ={}, inside=inside)
    assert load(config=config, environ={KX: "0"}, inside=inside) == config


@pytest.mark.parametrize("name", [KX, AG])
@pytest.mark.parametrize("value", FALSE)
def test_a_variable_that_says_false_chooses_local(name: str, value: str) -> None:
    assert place(environ={name: value}) == "local"


@pytest.mark.parametrize("name", [KX, AG])
@pytest.mark.parametrize("value", [*TRUE, *NOTHING])
def test_a_variable_that_says_true_or_nothing_leaves_containers(name: str, value: str) -> None:
    assert place(environ={name: value}) == "container"


@pytest.mark.parametrize("name", [KX, AG, FORCE])
@pytest.mark.parametrize("value", JUNK)
def test_a_variable_that_says_neither_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^{name}='{value}': must be true .* or false"):
        place(environ={name: value})


def test_the_environment_of_the_process_is_read_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AG, raising=False)
    monkeypatch.delenv(FORCE, raising=False)
    monkeypatch.setenv(KX, "0")
    assert load().isolation == "local"
    monkeypatch.setenv(KX, "1")
    assert load().isolation == "container"
    monkeypatch.delenv(KX)
    assert load(inside=False).isolation == "container"
    assert load().isolation == ("container-host" if in_container() else "container")


@pytest.mark.parametrize(("isolation", "use_docker"), [("local", True), ("container", False)])
def test_two_arguments_that_contradict_each_other_are_refused(isolation: str, use_docker: bool) -> None:  # noqa: FBT001
    with pytest.raises(InvalidConfig, match=f"isolation='{isolation}' and use_docker={use_docker} contradict each other"):
        place(isolation=isolation, use_docker=use_docker)


@pytest.mark.parametrize("use_docker", [None, False, True])
@pytest.mark.parametrize("isolation", ["lcoal", "Local", "locale"])
def test_a_misspelt_isolation_is_called_unknown(isolation: str, use_docker: bool | None) -> None:  # noqa: FBT001
    with pytest.raises(InvalidConfig, match=f"isolation='{isolation}' is unknown .did you mean 'local'"):
        place(isolation=isolation, use_docker=use_docker)


@pytest.mark.parametrize(
    ("use_docker", "images"),
    [
        ("python:3", ("python:3",)),
        (["python:3-slim", "python:3"], ("python:3-slim", "python:3")),
        (("a",), ("a",)),
        ("registry.example:5000/team/python@sha256:0123", ("registry.example:5000/team/python@sha256:0123",)),
    ],
)
def test_the_names_of_images_are_a_choice_of_containers(use_docker: Any, images: tuple[str, ...]) -> None:
    config = load(use_docker=use_docker, config={"container": {"image": "b", "pids": 99}}, environ={KX: "0"}, inside=False)
    assert (config.isolation, config.container.image, config.container.pids) == ("container", images, 99)
    assert place(use_docker=use_docker, inside=True) == "container"
    with pytest.raises(InvalidConfig, match=r"^isolation='local' and use_docker=.* contradict each other"):
        place(isolation="local", use_docker=use_docker)


@pytest.mark.parametrize(
    "use_docker",
    [0, 1, 2.5, "", " ", "a b", "--rm", [], (), [""], ["a", 5], [True], {"a"}, {}, "no", "False", "true", "none", ["1"]],
)
def test_a_choice_of_docker_that_is_neither_true_nor_false_nor_an_image_is_refused(use_docker: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^use_docker=.*: must be True, False, an image name or a list of image names\.$"):
        place(use_docker=use_docker)


def test_the_ways_out_name_the_cause_and_all_three() -> None:
    answer = isolation_help("the socket /nope is not there.")
    for way in (
        "/nope is not there. Solutions: start Docker",
        'isolation="local"',
        "use_docker=False",
        "KERNELEXEC_USE_DOCKER=0",
    ):
        assert way in answer


MARKS = {
    "docker's file": (".dockerenv", ""),
    "podman's file": ("run/.containerenv", ""),
    "docker's group": ("proc/1/cgroup", "4:memory:/docker/0123456789abcdef\n"),
    "docker's group of systemd": ("proc/1/cgroup", "0::/system.slice/docker-0123456789abcdef.scope\n"),
    "a pod's group": ("proc/1/cgroup", "0::/kubepods.slice/kubepods-burstable.slice/x\n"),
    "podman's group": ("proc/1/cgroup", "0::/machine.slice/libpod-0123456789abcdef.scope/container\n"),
    "an lxc group": ("proc/1/cgroup", "0::/lxc/name\n"),
    "layers as root": ("proc/self/mountinfo", "1 2 0:3 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A\n"),
    "podman's layers": (
        "proc/self/mountinfo",
        "1 2 0:3 / / rw - overlay overlay rw,lowerdir=/home/a/containers/storage/overlay/l/A\n",
    ),
    "files of an engine": (
        "proc/self/mountinfo",
        "1 2 8:1 /var/lib/docker/containers/0123/hostname /etc/hostname rw,relatime - ext4 /dev/sda1 rw\n",
    ),
}
NO_MARKS = {
    "nothing": ("proc/1/cgroup", "0::/init.scope\n4:memory:/\n"),
    "an engine's unit": ("proc/1/cgroup", "0::/system.slice/docker.service\n"),
    "layers of others": (
        "proc/self/mountinfo",
        "1 2 0:3 / /var/lib/docker/overlay2/a/merged rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A\n",
    ),
    "a live system": (
        "proc/self/mountinfo",
        "1 2 0:3 / / rw - overlay overlay rw,lowerdir=/run/live/rootfs,upperdir=/run/live/rw\n",
    ),
    "a plain root": ("proc/self/mountinfo", "1 2 8:1 / / rw - ext4 /dev/sda1 rw\n"),
    "garbage": ("proc/self/mountinfo", "\n - \nx - overlay\n"),
}


@pytest.mark.parametrize(("path", "text"), MARKS.values(), ids=MARKS)
def test_a_container_is_recognized_by(path: str, text: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert in_container(tmp_path)


@pytest.mark.parametrize(("path", "text"), NO_MARKS.values(), ids=NO_MARKS)
def test_a_machine_is_no_container_for(path: str, text: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert not in_container(tmp_path)


def test_a_chosen_isolation_needs_no_look_at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise AssertionError

    monkeypatch.setattr("kernelexec.config.loading.in_container", fail)
    assert load("local", environ={}).isolation == "local"
    assert load("container", environ={}).isolation == "container"
