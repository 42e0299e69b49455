"""The engine's settings of a container: arguments of ``docker run`` give exactly those settings of the host."""

from __future__ import annotations

from typing import Any

import pytest
from docker.types.containers import HostConfig

from kernelexec.config import Config
from kernelexec.config.dialects.autogen_config import load
from kernelexec.docker.create_options import Order

SECURE = [
    "--rm",
    *("--network", "none"),
    "--read-only",
    *("--tmpfs", "/tmp"),
    *("--memory", "512m"),
    *("--cpus", "0.5"),
    *("--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges:true"),
]


def order(*arguments: str) -> Order:
    config: Config = load("container", code_execution_config={"docker_run_args": list(arguments)})
    return Order("i", ("c",), {}, "1000", "/w", (), {"kernelexec.owner": "me"}, config.container, config.limits)


def host(*arguments: str) -> dict[str, Any]:
    return dict(HostConfig(version="1.41", **order(*arguments).host()))


def test_the_secure_example_gives_exactly_those_settings() -> None:
    actual = host(*SECURE)
    assert actual["Memory"] == actual["MemorySwap"] == 536870912
    assert (actual["NanoCpus"], actual["CapDrop"], actual.get("CapAdd")) == (500000000, ["ALL"], None)
    assert (actual["ReadonlyRootfs"], actual["NetworkMode"], actual["SecurityOpt"]) == (
        True,
        "none",
        ["no-new-privileges:true"],
    )
    assert list(actual["Tmpfs"]) == ["/tmp"]
    assert actual["Tmpfs"]["/tmp"].startswith("rw,noexec,nosuid,nodev,size=")


def test_other_arguments_reach_the_engine_too() -> None:
    actual = host(
        *("--memory=1g", "--tmpfs=/cache:size=8m", "--shm-size=16m", "--pids-limit=99", "--cap-add=KILL"),
        *("--ulimit=nofile=99", "--ulimit=as=1073741824", "--network=bridge"),
    )
    assert (actual["Memory"], actual["MemorySwap"], actual["ShmSize"]) == (2**30, 2**30, 2**24)
    assert actual["Tmpfs"]["/cache"] == "rw,noexec,nosuid,nodev,size=8388608,mode=1777"
    assert (actual["PidsLimit"], actual["CapAdd"], actual["NetworkMode"]) == (99, ["KILL"], "bridge")
    assert {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in actual["Ulimits"]} == {
        "core": (0, 0),
        "nofile": (99, 99),
        "as": (2**30, 2**30),
    }


def test_a_container_has_our_labels_and_the_engines_host_name() -> None:
    actual = order().settings()
    assert (actual["labels"], actual["hostname"]) == ({"kernelexec.owner": "me"}, None)


@pytest.mark.parametrize(
    ("gpus", "asked"),
    [
        ("all", {"Count": -1, "DeviceIDs": []}),
        (2, {"Count": 2, "DeviceIDs": []}),
        ("GPU-1", {"Count": 0, "DeviceIDs": ["GPU-1"]}),
        (["0", "MIG-2/1"], {"Count": 0, "DeviceIDs": ["0", "MIG-2/1"]}),
    ],
)
def test_gpus_are_asked_for_by_number_or_id(gpus: Any, asked: dict[str, Any]) -> None:
    config = load("container", config={"gpus": gpus})
    host = HostConfig(version="1.41", **Order("i", ("c",), {}, "1000", "/w", (), {}, config.container, config.limits).host())
    [request] = host["DeviceRequests"]
    assert request == {"Driver": "", "Capabilities": [["gpu"]], "Options": {}, **asked}


def test_containers_get_no_gpu_unless_they_are_asked_for() -> None:
    assert "DeviceRequests" not in host()
