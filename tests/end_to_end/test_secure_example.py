"""The arguments of the usual secure ``docker run`` give exactly those settings of the machine, and a kernel that works."""

from __future__ import annotations

from pathlib import Path

from kernelexec import Executor
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import WORKSPACE
from tests.support.engine import IMAGE, needs_engine

pytestmark = needs_engine

ARGUMENTS = [
    *("--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--memory", "512m", "--cpus", "0.5"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true"),
]


def test_the_eight_arguments_are_what_the_engine_describes(tmp_path: Path) -> None:
    value = {"work_dir": str(tmp_path / "work"), "use_docker": IMAGE, "timeout": 60, "docker_run_args": ARGUMENTS}
    with Executor("container", workspace=tmp_path, code_execution_config=value) as executor:
        session = executor.session("coder")
        assert session.execute("import pandas as pd; pd.Series([20, 22]).sum().item()").text == "42"
        assert session.workspace == tmp_path / "work"
        with Engine() as engine:
            (labelled,) = engine.list_containers(f"{WORKSPACE}={tmp_path}")
            host = engine.api.inspect_container(labelled.id)["HostConfig"]
        assert host["NetworkMode"] == "none"
        assert host["ReadonlyRootfs"] is True
        assert list(host["Tmpfs"]) == ["/tmp"]
        assert (host["Memory"], host["MemorySwap"]) == (536_870_912, 536_870_912)
        assert host["NanoCpus"] == 500_000_000
        assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], None)
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
    with Engine() as engine:  # --rm
        assert engine.list_containers(f"{WORKSPACE}={tmp_path}") == []
