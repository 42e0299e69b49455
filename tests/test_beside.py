"""An executor in a container has its kernels in containers beside it, through the engine's socket."""

from __future__ import annotations

import site
import sys
from pathlib import Path

import pytest

import kernelexec
from kernelexec.provisioning.engine import Engine
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


def test_a_server_in_a_container_has_kernels_beside_it(short_path: Path) -> None:
    """It sees none of their processes, so sockets tell it no id."""
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
