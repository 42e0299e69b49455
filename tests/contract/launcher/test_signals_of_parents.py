"""A parent that blocks or ignores signals, as supervisors, nohup and threads with masks do, has kernels that obey them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import settings_of
from tests.support.engine import needs_bubblewrap, needs_engine
from tests.support.pace import slow

#: The gate tries a parent that is deaf in both ways.
CASES = [
    pytest.param("local", "block and ignore"),
    *(pytest.param("local", how, marks=pytest.mark.nightly) for how in ("block", "ignore")),
    *(pytest.param("container", how, marks=[needs_engine, pytest.mark.nightly]) for how in ("block", "ignore")),
    *(pytest.param("local without fork server", how, marks=pytest.mark.nightly) for how in ("block", "ignore")),
    *(pytest.param("bubblewrap", how, marks=[needs_bubblewrap, pytest.mark.nightly]) for how in ("block", "ignore")),
]

#: All signals but 32 and 33 of the C library, which its ``posix_spawn`` leaves ignored in a parent that was started by it.
OURS = ~(0b11 << 31)
#: The program of the parent. It prints one line of JSON: results by the names of cells.
PARENT = """
import json, signal, sys
how, isolation, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]) | {"checkpoints": "named", "preload": []}
signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
if "block" in how:
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
if "ignore" in how:
    for signum in signals - {32, 33}:
        signal.signal(signum, signal.SIG_IGN)
from kernelexec import Executor
ACTIONS = "import signal; print([int(s) for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN])"
STATUS = "import re; print(*re.findall(r'Sig(?:Blk|Ign):.(.*)', open('/proc/self/status').read()))"
CHILD = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {STATUS!r}]).returncode)"
CODES = "print(subprocess.run(['sh', '-c', 'exit 7']).returncode, subprocess.run(['sh', '-c', 'kill -USR1 $$']).returncode)"
with Executor(isolation, config=config) as executor:
    session = executor.session("s")
    session.execute("x = 1")
    cells = {
        "loop": session.execute("while True: pass", timeout=0.5),
        "sleep": session.execute("import time; time.sleep(60)", timeout=0.5),
        "await": session.execute("import asyncio; await asyncio.sleep(60)", timeout=0.5),
        "command": session.execute_command("sleep 60", timeout=0.5),
        "magic": session.execute("%%bash\\nsleep 60", timeout=0.5),
        "line magic": session.execute("!sleep 60", timeout=0.5),
        "actions": session.execute(ACTIONS),
        "kernel": session.execute(STATUS),
        "child": session.execute(CHILD),
        "codes": session.execute(CODES),
        "kept": session.execute("print(x)"),
    }
    background = session.start_background("sleep 60")
    cells = {name: [r.interrupted, r.ended_by, r.state, r.stdout] for name, r in cells.items()}
    cells["background"] = session.kill_background(background.command_id).exit_code
    killed = session.execute("import os; os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)")
    cells["term"] = [killed.state, killed.interrupted]
print(json.dumps(cells))
"""


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_kernels_obey_signals_that_their_parent_does_not(kind: str, how: str, tmp_path: Path) -> None:
    isolation, config = settings_of(kind)
    words = [sys.executable, "-c", PARENT, how, isolation, json.dumps({**config, "budgets": {"grace": slow(2)}})]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout.splitlines()[-1])
    ended = ("loop", "sleep", "await", "command", "magic", "line magic")
    assert {name: (cells[name][0], cells[name][2]) for name in ended} == dict.fromkeys(ended, ("timeout", "kept"))
    assert {cells[name][1] for name in ended} <= {"interrupt", "signal"}
    assert cells["actions"][3] == "[13, 25]\n"  # SIGPIPE and SIGXFSZ, as in every Python
    blocked, ignored = cells["kernel"][3].split()
    assert (int(blocked, 16), int(ignored, 16) & OURS) == (0, 1 << 12 | 1 << 24)
    blocked, ignored, code = cells["child"][3].split()
    assert (int(blocked, 16), int(ignored, 16) & OURS, code) == (0, 1 << 12 | 1 << 24, "0")
    assert cells["codes"][3] == "7 -10\n"
    assert cells["kept"][3] == "1\n"
    assert cells["background"] == 143
    assert cells["term"] == ["lost", None]
