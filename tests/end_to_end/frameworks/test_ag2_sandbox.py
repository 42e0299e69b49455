"""AG2 1.x's shell and code tools on a session: in an environment of their own, since two AG2s do not fit into one."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import IMAGE, needs_engine

#: Nothing runs in containers in the gate: what differs there is shown of sessions themselves.
ALSO_CONFINED = ()
KINDS = ["local", pytest.param("container", marks=needs_engine)]

PROGRAM = """
import asyncio, json, sys
# Libraries of models, which AG2 imports where they are, and which take longer than all that is tested here.
sys.modules.update(dict.fromkeys(["anthropic", "google.genai", "mcp", "openai"]))
from pathlib import PurePosixPath
from ag2.tools.sandbox import ExecResult, Sandbox as Protocol
from ag2.tools.sandbox.adapter import CodeAdapter
from kernelexec.adapters.sandbox import Sandbox

async def there(file):
    while not file.exists():
        await asyncio.sleep(0.01)

async def main():
    found = {}
    config = {"container": {"image": sys.argv[3]}, "preload": []}
    async with Sandbox(sys.argv[1], workspace=sys.argv[2], config=config) as sandbox:
        found["protocol"] = isinstance(sandbox, Protocol)
        code = CodeAdapter(sandbox, languages=("python", "bash"))
        await code.run("x = 41", "python")
        ran = await code.run("print(x + 1)", "python")
        found["state"] = [ran.output, ran.exit_code]
        ran = await code.run("x / 0", "python")
        found["failure"] = ["ZeroDivisionError" in ran.output, ran.exit_code]
        await sandbox.exec(["sh", "-c", "mkdir -p deeper && cd deeper && export NAME=value"])
        ran = await sandbox.exec(["bash", "-c", "pwd; echo $NAME"])
        found["shell"] = [ran.output.split()[0].endswith("/deeper"), ran.output.split()[1], isinstance(ran, ExecResult)]
        await sandbox.exec(["sh", "-c", "cd .."])
        found["timeout"] = (await sandbox.exec(["python", "-c", "import time; time.sleep(600)"], timeout=1)).exit_code
        found["kept"] = (await sandbox.exec(["python", "-c", "x"])).output
        found["absent"] = (await sandbox.exec(["no-program-of-this-name"])).exit_code
        found["env"] = (await sandbox.exec(["sh", "-c", "echo $MORE"], env={"MORE": "given"})).output
        found["words"] = (await sandbox.exec(["printf", "%s|", "a b", "$HOME", ";"])).output
        found["empty"] = (await sandbox.exec([])).exit_code
        await sandbox.put_file(PurePosixPath("sub/file.txt"), b"content")
        found["file"] = [(await sandbox.exec(["cat", str(sandbox.workdir / "sub/file.txt")])).output]
        found["file"].append((sandbox.host_workdir / "sub/file.txt").read_text())
        await sandbox.remove_file(PurePosixPath("sub/file.txt"))
        await sandbox.remove_file(PurePosixPath("sub/file.txt"))
        found["file"].append((sandbox.host_workdir / "sub/file.txt").exists())
        for path in ("/etc/passwd", "../outside"):
            try:
                await sandbox.put_file(PurePosixPath(path), b"")
            except ValueError:
                found[path] = "refused"
        def marks(name):
            return f"open({str(sandbox.workdir / name)!r}, 'w').close()"
        running = asyncio.create_task(sandbox.exec(["python", "-c", f"import os, time; {marks('running')}; time.sleep(600)"]))
        await there(sandbox.host_workdir / "running")
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            found["cancelled"] = (await sandbox.exec(["python", "-c", "x + 1"])).output
        waits = f"while not os.path.exists({str(sandbox.workdir / 'go')!r}): time.sleep(0.01)"
        first = asyncio.create_task(sandbox.exec(["python", "-c", f"{marks('first')}\\n{waits}\\n'first'"]))
        await there(sandbox.host_workdir / "first")
        second = asyncio.create_task(sandbox.exec(["python", "-c", marks("second")]))
        await asyncio.sleep(0.3)  # it waits for its turn then, or a slow machine has not sent it
        second.cancel()
        await asyncio.wait([second])  # before the first one ends, and it would get its turn
        (sandbox.host_workdir / "go").touch()
        found["first"] = [(await first).output, (sandbox.host_workdir / "second").exists()]
    together = Sandbox(sys.argv[1], workspace=sys.argv[2] + "/together", config=config)
    ran = await asyncio.gather(*(together.exec(["python", "-c", f"print({number})"]) for number in range(4)))
    found["together"] = [one.output for one in ran]
    await together.aclose()
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where AG2 1.x is, and nothing else that this environment has not."""
    directory = tmp_path_factory.mktemp("ag2")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--target",
        str(directory),
        "ag2>=1.2,<2",
        "fast-depends",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


@pytest.mark.parametrize("kind", KINDS)
def test_code_and_shell_tools_share_one_state(directory: Path, tmp_path: Path, kind: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(tmp_path), IMAGE],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "protocol": True,
        "state": ["42", 0],
        "failure": [True, 1],
        "shell": [True, "value", True],
        "timeout": 124,
        "kept": "41",
        "absent": 127,
        "env": "given",
        "words": "a b|$HOME|;|",
        "empty": 2,
        "file": ["content", "content", False],
        "/etc/passwd": "refused",
        "../outside": "refused",
        "cancelled": "42",
        "first": ["'first'", False],
        "together": ["0", "1", "2", "3"],
    }


def test_without_ag2_the_way_to_install_it_is_reported() -> None:
    with pytest.raises(ImportError, match=re.escape("pip install 'ag2>=1.2,<2'")):
        importlib.import_module("kernelexec.adapters.sandbox")
