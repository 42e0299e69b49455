"""Containers in which kernel follows kernel: how they are opened, distinguished and inspected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from kernelexec.docker.client import Engine
from kernelexec.docker.labels import WORKSPACE
from tests.support.engine import IMAGE
from tests.support.pace import until

#: What a container holds of those that ran in it, beside the kernel that looks.
LOOK = """
import ctypes, json, os
print(json.dumps({
    'parent': os.getppid(),
    'processes': len({int(name) for name in os.listdir('/proc') if name.isdecimal()} - {1, os.getpid()}),
    'tmp': sorted(name for name in os.listdir('/tmp') if name in ('file', 'directory', 'fifo')),
    'shm': os.listdir('/dev/shm'),
    'objects': sum(len(open(f'/proc/sysvipc/{kind}').readlines()) - 1 for kind in ('shm', 'msg', 'sem')),
    'leads': os.getpid() == os.getsid(0) == os.getpgid(0),
}))
"""
CLEAN = {"parent": 1, "processes": 0, "tmp": [], "shm": [], "objects": 0, "leads": True}


def ids(executor: Executor) -> set[str]:
    with Engine() as engine:
        return {
            actual.id
            for actual in engine.list_containers(f"{WORKSPACE}={executor.config.absolute_workspace}")
            if actual.running
        }


def opened(tmp_path: Path, more: dict[str, Any] | None = None, **options: Any) -> Executor:
    config = {"container": {"image": IMAGE, **options}, "checkpoints": "named", **(more or {})}
    return Executor("container", workspace=tmp_path, config=config)


def looked(session: Session) -> dict[str, Any]:
    return dict(json.loads(session.execute(LOOK).stdout))


@pytest.fixture(scope="module", name="executor")
def small_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    with opened(tmp_path_factory.mktemp("w"), memory_bytes=512 << 20) as item:
        yield item


@pytest.fixture(name="session")
def watched_session(executor: Executor) -> Iterator[Session]:
    item = executor.session("one")
    yield item
    item.close()
    until(lambda: ids(executor) == set())
