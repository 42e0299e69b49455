"""An executor in a container has its kernels in containers beside it, through the engine's socket."""

from __future__ import annotations

import json
import site
import sys
import threading
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest

import kernelexec
from kernelexec import Executor
from kernelexec.config import load
from kernelexec.provisioning import orphans
from kernelexec.provisioning.engine import Engine
from kernelexec.provisioning.labels import OWNER
from kernelexec.provisioning.orphans import sweep_containers
from kernelexec.provisioning.roots import Owner
from tests.engine import IMAGE, needs_engine

pytestmark = [
    needs_engine,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="it lends the container its packages, which are Python 3.11's"),
]

PROGRAM = """
from kernelexec import Executor
with Executor(workspace="{place}/ws", config={{"container": {{"image": "{image}"}}, "quiet": True}}) as executor:
    session = executor.session("a")
    session.execute("x = 41")
    result = session.execute("x + 1")
    print(result.text.strip(), result.isolation, result.state)
    print(session.execute("import os; os._exit(3)").exit_code)
    print(session.execute_command("id -u").stdout.strip())
"""


def test_a_server_in_a_container_has_kernels_beside_it_and_spares_those_of_others(short_path: Path, tmp_path: Path) -> None:
    """It sees none of their processes, so sockets tell it no id; nor whether the owners of other containers live."""
    with Executor("container", workspace=tmp_path, config={"container": {"image": IMAGE}}) as other:
        session = other.session("a")
        assert session.execute("x = 1").ok
        run_in_container(short_path)
        assert session.execute("x").text == "1\n"


def run_in_container(short_path: Path) -> None:
    """Run the program as root of a container that can speak to the engine."""
    (short_path / "run").mkdir(mode=0o700)
    packages, package = site.getsitepackages()[0], Path(kernelexec.__file__).parent
    binds = [
        ("/var/run/docker.sock", "/var/run/docker.sock"),
        (str(short_path), str(short_path)),
        (str(package), str(package)),
        (packages, "/packages"),
    ]
    environment = {
        "PYTHONPATH": f"{package.parent}:/packages",
        "XDG_RUNTIME_DIR": f"{short_path}/run",
        "KERNELEXEC_FORCE_CONTAINER": "1",
    }
    settings = {
        "image": IMAGE,
        "command": ["python3", "-c", PROGRAM.format(place=short_path, image=IMAGE)],
        "environment": environment,
        "working_dir": str(short_path),
        "user": "0:0",
    }
    host = {"network_mode": "none", "init": True, "binds": [f"{source}:{target}" for source, target in binds]}
    with Engine() as engine:
        container = engine.create(None, settings, host)
        try:
            engine.start(container)
            status = engine.api.wait(container, timeout=120)["StatusCode"]
            printed = bytes(engine.api.logs(container, stderr=False)).decode().splitlines()
            assert (status, printed) == (0, ["42 container kept", "3", "0"]), engine.logs(container)
        finally:
            engine.remove(container)
        assert engine.labelled(f"kernelexec.workspace={short_path}/ws") == []
    assert list((short_path / "run").iterdir()) == []


@pytest.mark.parametrize(
    "owner",
    [
        replace(Owner.this(locked=True), pid=2**22 + 1, pid_namespace="pid:[1]"),
        replace(Owner.this(locked=True), boot="another", machine="another"),
    ],
    ids=["another container's", "another machine's"],
)
def test_what_has_ended_of_an_owner_that_cannot_be_seen_is_removed_a_while_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Owner
) -> None:
    said = json.dumps(asdict(owner))
    its = f"{OWNER}={said}"
    settings = {"image": IMAGE, "command": ["sleep", "60"], "labels": {OWNER: said}}
    monkeypatch.setattr(orphans, "OWNER", its)  # those of other tests are no concern of this one
    with Engine() as engine:
        running, ended = (engine.create(None, settings, {"network_mode": "none", "init": True}) for _ in range(2))
        try:
            engine.start(running)
            for patience, there in ((timedelta(minutes=10), {running, ended}), (timedelta(), {running})):
                monkeypatch.setattr(orphans, "_NOTED", patience)
                sweep_containers(load("container", workspace=tmp_path), threading.Event())
                assert {found.id for found in engine.labelled(its)} == there
        finally:
            for container in (running, ended):
                engine.remove(container)
