"""An executor in a container has its kernels in containers beside it, through the engine's socket."""

from __future__ import annotations

import json
import os
import secrets
import site
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

import kernelexec
from kernelexec import Executor
from kernelexec.config import load
from kernelexec.docker.client import ContainerStatus, Engine, ListedContainer
from kernelexec.docker.labels import CLIENT, OWNER
from kernelexec.errors import EngineRefused
from kernelexec.provisioning.container import containers
from kernelexec.provisioning.container.containers import remove_leftovers, sweep_containers
from kernelexec.provisioning.runtime.owned_directory import OwnerRecord
from tests.support.engine import IMAGE, needs_engine
from tests.support.night import named_cases

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
        assert session.execute("x").text == "1"


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
        assert engine.list_containers(f"kernelexec.workspace={short_path}/ws") == []
    assert list((short_path / "run").iterdir()) == []


DEAD = replace(OwnerRecord.of_this_process(locked=True), pid=2**22 + os.getpid())  # no process can have this id
UNSEEN = {
    "another container's": replace(DEAD, pid_namespace="pid:[1]"),
    "another machine's": replace(DEAD, boot="another", machine="another"),
    "of no known time": replace(DEAD, started=0),
}


#: The label by which the containers are found. The sweeps of other tests' executors do not know it.
LEFT = "kernelexec-test.left"


class Left:
    """Containers of one owner, some running and some not, which only these tests see as such."""

    def __init__(self, engine: Engine, owner: OwnerRecord, monkeypatch: pytest.MonkeyPatch, *, also: str = OWNER) -> None:
        answer = json.dumps(asdict(owner))
        self._engine, self._mark = engine, f"{LEFT}={secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        self._settings = {"image": IMAGE, "command": ["sleep", "60"], "labels": {name: value}}
        labels = {OWNER: answer, also: answer}
        self._list = real = Engine.list_containers

        def list_own(engine: Engine, label: str) -> list[ListedContainer]:
            listed = real(engine, self._mark) if label in labels else []
            return [replace(container, labels=labels) for container in listed]

        monkeypatch.setattr(Engine, "list_containers", list_own)

    def make(self, *, running: bool) -> str:
        container = self._engine.create(None, self._settings, {"network_mode": "none", "init": True})
        if running:
            self._engine.start(container)
        return container

    @property
    def there(self) -> set[str]:
        return {actual.id for actual in self._list(self._engine, self._mark)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for container in self.there:
            self._engine.remove(container)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def sweep(workspace: Path) -> None:
    sweep_containers(load("container", workspace=workspace), threading.Event())


@pytest.mark.parametrize("owner", named_cases(UNSEEN, {"another container's"}))
def test_ended_containers_of_an_unknown_owner_are_removed_later(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: OwnerRecord
) -> None:
    with Left(engine, owner, monkeypatch) as left:
        running, ended = left.make(running=True), left.make(running=False)
        sweep(tmp_path)
        assert left.there == {running, ended}
        monkeypatch.setattr(containers, "_NOTICE_TIME", timedelta())
        sweep(tmp_path)
        assert left.there == {running}


def test_of_which_the_engine_says_nothing_stays_and_the_others_go(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def see(engine: Engine, container: str) -> ContainerStatus:
        if container == broken:
            raise EngineRefused("500: layer does not exist")
        return see_all(engine, container)

    see_all = Engine.inspect_container
    with Left(engine, UNSEEN["another container's"], monkeypatch) as left:
        broken, _ = left.make(running=False), left.make(running=False)
        monkeypatch.setattr(containers, "_NOTICE_TIME", timedelta())
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "inspect_container", see)
            sweep(tmp_path)
        assert left.there == {broken}


def test_a_dead_owners_container_that_runs_and_whose_directory_is_not_seen_may_have_a_new_owner(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Left(engine, DEAD, monkeypatch) as left:
        running, _ = left.make(running=True), left.make(running=False)
        sweep(tmp_path)
        assert left.there == {running}


def test_an_owner_that_adopts_nothing_leaves_what_waits_in_other_workspaces(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load("container", workspace=tmp_path, config={"container": {"orphan_seconds": 0}})
    with Left(engine, DEAD, monkeypatch) as left:
        running = left.make(running=True)
        sweep_containers(config, threading.Event())
        assert left.there == {running}


def test_ended_containers_of_other_programs_kernels_are_removed_too(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Left(engine, UNSEEN["another container's"], monkeypatch, also=CLIENT) as left:
        left.make(running=False)
        monkeypatch.setattr(containers, "_NOTICE_TIME", timedelta())
        remove_leftovers(engine)
        assert left.there == set()
