"""Arguments of ``docker run``: what is taken sets an option, what would open the wall is refused by name."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from kernelexec.config import MIB, Config, load, parse_size
from kernelexec.config.dialects.autogen_config import REFUSED
from kernelexec.config.dialects.autogen_config import parse_run_args as parse
from kernelexec.config.protected_paths import mount_refusal
from kernelexec.errors import InvalidConfig

SECURE = {
    "--rm": None,
    "--network": "none",
    "--read-only": None,
    "--tmpfs": "/tmp",
    "--memory": "512m",
    "--cpus": "0.5",
    "--cap-drop": "ALL",
    "--security-opt": "no-new-privileges:true",
}
#: Option and value to the branch and the options that they set.
TAKEN: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("--cap-add", "chown"): ("container", {"cap_add": ("CHOWN",)}),
    ("--cap-add", "CAP_KILL"): ("container", {"cap_add": ("KILL",)}),
    ("--cap-drop", "all"): ("", {}),
    ("--cap-drop", "NET_RAW"): ("", {}),
    ("--cgroupns", "private"): ("", {}),
    ("--cpus", "2"): ("container", {"cpus": 2.0}),
    ("--env", "A=b=c d"): ("environment", {"set": {"A": "b=c d"}}),
    ("--env", "A="): ("environment", {"set": {"A": ""}}),
    ("--env", "A"): ("environment", {"pass_names": ("A",)}),
    ("--ipc", "private"): ("", {}),
    ("--memory", "1.5g"): ("container", {"memory_bytes": 1536 * MIB}),
    ("--name", "my-box"): ("container", {"name": "my-box"}),
    ("--network", "bridge"): ("container", {"network": "bridge"}),
    ("--network", "host"): ("container", {"network": "host"}),
    ("--net", "none"): ("container", {"network": "none"}),
    ("--pids-limit", "100"): ("container", {"pids": 100}),
    ("--pids-limit", "-1"): ("container", {"pids": None}),
    ("--security-opt", "no-new-privileges"): ("container", {"sudo": False}),
    ("--security-opt", "no-new-privileges=true"): ("container", {"sudo": False}),
    ("--shm-size", "128m"): ("container", {"tmpfs": {"/dev/shm": 128 * MIB}}),
    ("--tmpfs", "/tmp:rw,noexec,nosuid,nodev,mode=1777"): ("", {}),
    ("--tmpfs", "/tmp:size=64m"): ("container", {"tmpfs": {"/tmp": 64 * MIB}}),
    ("--tmpfs", "/cache"): ("container", {"tmpfs": {"/cache": 64 * MIB}}),
    ("--tmpfs", "//cache/"): ("container", {"tmpfs": {"/cache": 64 * MIB}}),
    ("--tmpfs", "/cache:size=1g,noexec"): ("container", {"tmpfs": {"/cache": 1024 * MIB}}),
    ("--ulimit", "nofile=1024"): ("limits", {"nofile": 1024}),
    ("--ulimit", "nofile=1024:1024"): ("limits", {"nofile": 1024}),
    ("--ulimit", "as=1073741824"): ("limits", {"as_bytes": 1024 * MIB}),
    ("--ulimit", "nofile=-1"): ("limits", {"nofile": None}),
    ("--ulimit", "core=0"): ("", {}),
    ("--user", "1000:1000"): ("container", {"user": "1000:1000"}),
    ("--volume", "/data/in:/in"): ("container", {"mounts": ({"source": "/data/in", "target": "/in", "read_only": False},)}),
    ("--volume", "/data/in:/in:rw"): ("container", {"mounts": ({"source": "/data/in", "target": "/in", "read_only": False},)}),
    ("--volume", "./in:/in:ro"): ("container", {"mounts": ({"source": "./in", "target": "/in", "read_only": True},)}),
    ("--workdir", "/workspace"): ("container", {"layout": "classic"}),
}
SHORT: dict[str, tuple[str, str]] = {
    "-e": ("--env", "A=b"),
    "-m": ("--memory", "512m"),
    "-u": ("--user", "1000"),
    "-v": ("--volume", "/data:/data"),
    "-w": ("--workdir", "/workspace"),
}
#: Known options with invalid values: the error names the option, the value and the reason.
REFUSED_VALUES: dict[tuple[str, str], str] = {
    ("--network", "container:abc"): "share a namespace",
    ("--ipc", "host"): "share a namespace",
    ("--ipc", "container:abc"): "share a namespace",
    ("--cgroupns", "host"): "share a namespace",
    ("--cap-add", "ALL"): "reaches beyond the container",
    ("--cap-add", "SYS_ADMIN"): "reaches beyond the container",
    ("--cap-add", "cap_sys_ptrace"): "reaches beyond the container",
    ("--cap-add", "NET_ADMIN"): "reaches beyond the container",
    ("--cap-add", "NET_RAW"): "reaches beyond the container",
    ("--security-opt", "seccomp=unconfined"): "confinement must not change",
    ("--security-opt", "seccomp:unconfined"): "confinement must not change",
    ("--security-opt", "apparmor=unconfined"): "confinement must not change",
    ("--security-opt", "label=disable"): "confinement must not change",
    ("--security-opt", "systempaths=unconfined"): "confinement must not change",
    ("--security-opt", "no-new-privileges:false"): "with container.sudo only",
    ("--volume", "/:/host"): "/ is a system directory",
    ("--volume", "/:/host:ro"): "/ is a system directory",
    ("--volume", "/../.:/host"): "/ is a system directory",
    ("--volume", "//:/host"): "is a system directory",
    ("--volume", "/etc:/e:ro"): "/etc is a system directory",
    ("--volume", "/etc/shadow:/s:ro"): "/etc/shadow is a system directory",
    ("--volume", "/tmp/../etc/ssl:/s"): "/etc/ssl is a system directory",
    ("--volume", "/proc:/p"): "/proc is a system directory",
    ("--volume", "/proc/self/root:/p"): "is a system directory",
    ("--volume", "/sys/fs/cgroup:/c"): "is a system directory",
    ("--volume", "/dev/sda:/d"): "is a system directory",
    ("--volume", "/root:/r"): "/root is a system directory",
    ("--volume", "/home:/h"): "/home is a system directory",
    ("--volume", "/var/lib/docker/volumes:/v"): "is a system directory",
    ("--volume", "/usr/bin:/b:ro"): "is a system directory",
    ("--volume", "/var/run/docker.sock:/var/run/docker.sock"): "is a system directory",
    ("--volume", "/run/docker.sock:/d.sock:ro"): "is a system directory",
    ("--volume", "/data/docker.sock:/d.sock"): "a socket, through which code could control a daemon",
}
UNFIT: dict[tuple[str, ...], str] = {
    ("--memroy", "1g"): "--memroy is not supported (did you mean '--memory'?)",
    ("--cpu=1",): "--cpu is not supported (did you mean '--cpus'?)",
    ("--readonly",): "--readonly is not supported (did you mean '--read-only'?)",
    ("--zzz",): "--zzz is not supported: see",
    ("-x",): "-x is not supported",
    ("python:3",): "'python:3' is not an option: set the image with docker_image",
    ("-e", "A=1", "TOKEN=hidden"): "'TOKEN' is not an option",
    ("",): "'' is not an option",
    ("--memory",): "--memory must have a value",
    ("--memory", "--rm"): "--memory must have a value",
    ("--memory", ""): "--memory must have a value",
    ("--memory=big",): "--memory='big': must be a size, as in 512m",
    ("--memory-swap=2g",): "--memory-swap is not supported",
    ("--shm-size=-1",): "--shm-size='-1': must be a size",
    ("--cpus=half",): "--cpus half is invalid: must be a number",
    ("--pids-limit=many",): "--pids-limit many is invalid: must be a whole number",
    ("--network=mine",): "--network mine is invalid: must be none, bridge or host",
    ("--tmpfs=/tmp:exec",): "--tmpfs /tmp:exec is invalid",
    ("--tmpfs=/tmp:size=x",): "--tmpfs size='x': must be a size",
    ("--security-opt=mine",): "--security-opt mine is invalid: must be no-new-privileges",
    ("--cap-drop=a b",): "--cap-drop a b is invalid",
    ("--ulimit=nofile",): "--ulimit  is invalid: must be a whole number",
    ("--ulimit=nofile=1:2",): "soft and hard limit must be the same",
    ("--ulimit=core=1",): "must be one of nofile, as, or core=0",
    ("--volume=/data",): "SOURCE:TARGET",
    ("--volume=named:/data",): "both paths",
    ("--volume=/a:/b:z",): "SOURCE:TARGET:ro",
    ("--workdir=/elsewhere",): "/workspace; set the directory of this machine with work_dir",
    ("--read-only=perhaps",): "--read-only perhaps is invalid: must be true or false",
    ("--init=false",): "--init false is refused",
    ("--rm=false",): "--rm false is refused",
    ("--memory=1g", "-m2g"): "container.memory_bytes must not be set twice, as 1073741824 and 2147483648",
    ("--network=none", "--network=host"): "container.network must not be set twice",
    ("--tmpfs=/a:size=1m", "--tmpfs=/a/:size=2m"): "--tmpfs /a must not be set twice",
    ("--tmpfs=/a", "--tmpfs=/a"): "--tmpfs /a must not be set twice",
}
#: What the options themselves refuse, whether they come by arguments or by a mapping.
UNFIT_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a capability": ({"cap_add": ["SYS_ADMIN"]}, "container.cap_add: SYS_ADMIN reaches beyond the container"),
    "the root": ({"mounts": [{"source": "/"}]}, "container.mounts.0.source: / is a system directory"),
    "over the root": (
        {"mounts": [{"source": "/data", "target": "/"}]},
        "container.mounts.0.target: / is needed by the container",
    ),
    "over the launcher": ({"mounts": [{"source": "/data", "target": "/opt"}]}, "container.mounts.0.target: /opt is needed"),
    "over proc": ({"mounts": [{"source": "/data", "target": "//proc/1"}]}, "container.mounts.0.target: /proc/1 is needed"),
    "a relative target": ({"mounts": [{"source": "/data", "target": "in"}]}, "must be an absolute path"),
    "a target above": ({"mounts": [{"source": "/data", "target": "/in/../proc"}]}, "must be an absolute path without '..'"),
    "over the workspace": ({"mounts": [{"source": "/data", "target": "/workspace/"}]}, "set it with work_dir"),
    "memory over proc": ({"tmpfs": {"/proc": MIB}}, "container.tmpfs: /proc is needed"),
    "memory over a part of shared memory": ({"tmpfs": {"/dev/shm/a": MIB}}, "container.tmpfs: /dev/shm/a is needed"),
    "little memory for all": ({"tmpfs": {"/tmp": 1}}, "container.tmpfs./tmp: "),
    "memory over the workspace": ({"tmpfs": {"/workspace": MIB}}, "container.tmpfs: /workspace must not be in memory"),
    "memory over the workspace by another name": ({"tmpfs": {"//workspace/.": MIB}}, "/workspace must not be in memory"),
    "a mount over the workspace by another name": (
        {"mounts": [{"source": "/data", "target": "//workspace"}]},
        "set it with work_dir",
    ),
    "memory twice at one place": ({"tmpfs": {"/a/": MIB, "/a": MIB}}, "container.tmpfs: /a must not be listed twice"),
    "little memory": ({"tmpfs": {"/a": 1}}, "container.tmpfs./a: "),
    "a user's name": ({"user": "root"}, "container.user: must be a numeric user id"),
    "a user beyond all": ({"user": "2147483648"}, "container.user: a user or group id must be <= 2147483647 (given: '2147"),
    "a group beyond all": ({"user": "1000:99999999999"}, "container.user: a user or group id must be <= 2147483647"),
    "a group just beyond": ({"user": "1000:2147483648"}, "container.user: a user or group id must be <= 2147483647"),
    "a user in other digits": ({"user": "\u0663"}, "container.user: must be a numeric user id"),
    "next to no processor": ({"cpus": 0.009}, "container.cpus: Input should be greater than or equal to 0.01 (given: 0.009)"),
    "more processes than there are": ({"pids": 4194305}, "container.pids: Input should be less than or equal to 4194304"),
    "memory beyond all": ({"memory_bytes": 2**63}, "container.memory_bytes: Input should be less than or equal to"),
    "an image of two words": ({"image": "a b"}, "container.image: must be an image name"),
    "an image like an option": ({"image": "--privileged"}, "container.image: must be an image name"),
    "an interpreter without a name": ({"python": ""}, "container.python: must be the name of a program in the image"),
    "a blank interpreter": ({"python": " "}, "container.python: must be the name of a program in the image"),
    "an interpreter of two lines": ({"python": "python3\n"}, "container.python: must be the name of a program in the image"),
    "no image": ({"image": []}, "container.image: must be an image name"),
}


def config(*arguments: str) -> Config:
    return load("container", config=parse(arguments))


@pytest.mark.parametrize("form", ["words", "equals", "strings"])
def test_the_secure_example_sets_exactly_that(form: str) -> None:
    match form:
        case "words":
            arguments = [word for pair in SECURE.items() for word in pair if word is not None]
        case "equals":
            arguments = [name if value is None else f"{name}={value}" for name, value in SECURE.items()]
        case _:
            arguments = [name if value is None else f"{name} {value}" for name, value in SECURE.items()]
    wall = config(*arguments).container
    assert (wall.memory_bytes, wall.cpus) == (536870912, 0.5)
    assert (wall.network, wall.read_only_root, wall.sudo, wall.cap_add) == ("none", True, False, ())
    changed = {name for name in type(wall).model_fields if getattr(wall, name) != getattr(Config().container, name)}
    assert changed == {"memory_bytes", "cpus"}


@pytest.mark.parametrize(("option", "set_"), TAKEN.items(), ids=map(" ".join, TAKEN))
def test_an_argument_sets_its_option_in_every_form(option: tuple[str, str], set_: tuple[str, dict[str, Any]]) -> None:
    name, value = option
    branch, options = set_
    expected = {branch: options} if branch else {}
    for arguments in ([name, value], [f"{name}={value}"], [f"{name} {value}"]):
        assert parse(arguments) == expected
    load("container", config=expected)


@pytest.mark.parametrize(("short", "long"), SHORT.items(), ids=SHORT)
def test_a_short_name_is_its_long_one(short: str, long: tuple[str, str]) -> None:
    name, value = long
    expected = parse([name, value])
    for arguments in ([short, value], [f"{short}{value}"], [f"{short}={value}"], [f"{short} {value}"]):
        assert parse(arguments) == expected


@pytest.mark.parametrize(("word", "taken"), [("--read-only", True), ("--read-only=true", True), ("--read-only=false", False)])
def test_a_read_only_root_needs_no_value(word: str, taken: bool) -> None:  # noqa: FBT001
    assert config(word).container.read_only_root is taken


def test_repeatable_arguments_are_all_used() -> None:
    arguments = [
        "-e",
        "A=1",
        "-e",
        "B=2",
        "-v",
        "/a:/a",
        "-v",
        "/b:/b:ro",
        "--cap-add=CHOWN",
        "--cap-add=KILL",
        "--init",
        "--init",
    ]
    settings = config(*arguments)
    wall = settings.container
    assert settings.environment.set == {"A": "1", "B": "2"}
    assert [(str(mount.source), mount.target, mount.read_only) for mount in wall.mounts] == [
        ("/a", "/a", False),
        ("/b", "/b", True),
    ]
    assert wall.cap_add == ("CHOWN", "KILL")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("form", ["{}", "{}=host", "{} host"])
def test_an_option_that_opens_the_wall_is_refused_by_name(name: str, form: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(["--rm", form.format(name)])
    assert str(caught.value) == f"docker_run_args: {name} is refused: {REFUSED[name]}."


@pytest.mark.parametrize(
    "name",
    [
        "--privileged",
        "--pid",
        "--uts",
        "--userns",
        "--device",
        "--volumes-from",
        "--sysctl",
        "--gpus",
        "--entrypoint",
        "--publish",
    ],
)
def test_among_those_that_are_refused_is(name: str) -> None:
    assert name in REFUSED


@pytest.mark.parametrize(("short", "name"), [("-p8080:80", "--publish"), ("-P", "--publish-all"), ("-it", "--interactive")])
def test_a_short_name_is_refused_by_its_long_one(short: str, name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"^docker_run_args: {name} is refused: "):
        parse([short])


@pytest.mark.parametrize(("option", "problem"), REFUSED_VALUES.items(), ids=map(" ".join, REFUSED_VALUES))
def test_a_value_that_opens_the_wall_is_refused_by_name(option: tuple[str, str], problem: str) -> None:
    name, value = option
    for arguments in ([name, value], [f"{name}={value}"]):
        with pytest.raises(InvalidConfig) as caught:
            parse(arguments)
        assert str(caught.value).startswith(f"docker_run_args: {name} {value} is refused: ")
        assert problem in str(caught.value)


@pytest.mark.parametrize(("arguments", "message"), UNFIT.items(), ids=map(" ".join, UNFIT))
def test_an_argument_that_is_unknown_or_does_not_fit_is_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(arguments)
    assert str(caught.value).startswith("docker_run_args: ")
    assert message in str(caught.value)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(("options", "message"), UNFIT_OPTIONS.values(), ids=UNFIT_OPTIONS)
def test_an_option_refuses_the_same_from_every_source(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load("container", config={"container": options, "environment": {"set": {"TOKEN": "hidden"}}})
    assert message in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_directory_in_memory_has_one_name() -> None:
    actual = load("container", config={"container": {"tmpfs": {"//a//b/": MIB, "/c": 2 * MIB}}}).container.tmpfs
    assert actual == {"/a/b": MIB, "/c": 2 * MIB}


def test_the_largest_and_the_smallest_figures_are_taken() -> None:
    options = {"user": "2147483647:2147483647", "cpus": 0.01, "pids": 4194304}
    actual = load("container", config={"container": options}).container
    assert actual.model_dump(include=set(options)) == options
    assert actual.ids == (2147483647, 2147483647)


def test_links_to_what_is_refused_and_directories_that_hold_an_engine_are_refused(short_path: Path) -> None:
    (short_path / "link").symlink_to("/etc")
    (short_path / "engine").mkdir()
    (short_path / "engine" / "docker.sock").touch()
    (short_path / "plain").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short_path / "any"))
        problem = {name: mount_refusal(short_path / name) for name in ("link", "engine", "any", "plain", "missing")}
    assert problem == {
        "link": "/etc is a system directory",
        "engine": f"{short_path}/engine contains docker.sock, through which code could control the engine",
        "any": f"{short_path}/any is a socket, through which code could control a daemon of this machine",
        "plain": None,
        "missing": None,
    }


def test_a_source_is_a_path_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config("-v", "./in:/in").container.mounts[0].source == tmp_path / "in"


def test_a_source_relative_to_a_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidConfig, match="an existing path"):
        parse(["-v", "./in:/in"])
    with pytest.raises(InvalidConfig, match="must not be relative to a directory that no longer exists"):
        load("container", config={"container": {"mounts": [{"source": "in"}]}})


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ("512m", 536870912),
        ("512M", 536870912),
        ("512mb", 536870912),
        ("512 MiB", 536870912),
        ("1g", 1073741824),
        ("1.5g", 1610612736),
        ("0.1k", 102),
        ("2t", 2 * 1024**4),
        ("1048576", 1048576),
        ("100b", 100),
        (" 5 ", 5),
        (1048576, 1048576),
        (0, 0),
    ],
)
def test_a_size_is_taken(settings: object, taken: int) -> None:
    actual = parse_size(settings, "--memory")
    assert (type(actual), actual) == (int, taken)


@pytest.mark.parametrize(
    "settings", ["", "m", "-1", "1x", "1.m", ".5g", "1e9", "nan", "٣m", "9" * 5000, -1, True, 1.5, None, b"5m"]
)
def test_all_else_is_no_size(settings: object) -> None:
    with pytest.raises(InvalidConfig, match=r"^--memory=.*: must be a size, as in 512m, 1\.5g or 1048576\.$") as caught:
        parse_size(settings, "--memory")
    assert len(str(caught.value)) < 300
