"""What was flushed has left the process, however late the system lets libzmq's own thread run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import zmq

from kernelexec.launcher.output.iopub import IOThreads
from tests.support.pace import BOUND

#: Sends a message and ends at once. libzmq's thread is the last to run on a processor that another process keeps busy.
SENDS = """
import os, subprocess, sys, threading
import zmq
from kernelexec.launcher.output import iopub
from kernelexec.launcher.output.iopub import IOThreads

iopub._PATIENCE_SECONDS = float(sys.argv[2])
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
socket = zmq.Context().socket(zmq.PUSH)
socket.connect(sys.argv[1])
sending = IOThreads()
socket.send(b"connected")
sys.stdin.readline()
for task in os.listdir("/proc/self/task"):
    if open(f"/proc/self/task/{task}/comm").read().startswith("ZMQbg/IO"):
        os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))
burning = subprocess.Popen([sys.executable, "-c", "print(flush=True)\\nfor _ in range(10**9): pass"], stdout=subprocess.PIPE)
burning.stdout.readline()
socket.send(b"before")
sending.wait()
burning.kill()
os._exit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what threads do")
def test_sent_messages_leave_before_the_process_ends() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(5):
            command = [sys.executable, "-c", textwrap.dedent(SENDS), f"tcp://127.0.0.1:{port}", str(BOUND)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as sending:
                assert pull.poll(int(1000 * BOUND))
                assert pull.recv() == b"connected"
                sending.communicate("\n", timeout=BOUND)
            assert sending.returncode == 3
            assert pull.poll(int(1000 * BOUND))
            assert pull.recv() == b"before"


def test_a_system_that_does_not_show_its_threads_gets_a_pause(tmp_path: Path) -> None:
    sending = IOThreads(str(tmp_path / "nothing"))
    sending.wait()
    assert sending._paused > 0
