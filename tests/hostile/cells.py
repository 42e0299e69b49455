"""Cells that are hostile, broken or merely loud, each with the verdicts that are right for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.support.pace import BOUND, slow

Verdict = Literal["kept", "lost"]
KEPT: Verdict = "kept"
LOST: Verdict = "lost"
MIB = 1024 * 1024

#: Gives a cell the kernel's own means: its sockets, its signing session, its runtime directory.
MEANS = """
import asyncio, ctypes, json, os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
kernel = get_ipython().kernel
parent = kernel.get_parent("shell")
place = Path(json.loads(Path(kernel.config.IPKernelApp.get("connection_file", "") or sys.argv[-1]).read_text())["ip"]).parent

def publish(msg_type, content, parent=parent, **more):
    kernel.session.send(kernel.iopub_socket, msg_type, content, parent=parent, **more)

def reply(content, **more):
    ident = kernel._shell_parent_ident.get()
    kernel.session.send(kernel.shell_stream.socket, "execute_reply", content, parent=parent, ident=ident, **more)

def send_raw(*frames):
    kernel.iopub_thread.send_multipart(list(frames))

def send_signed(header, parent, metadata, content):
    parts = [header, parent, metadata, content]
    send_raw(b"stream", b"<IDS|MSG>", kernel.session.sign(parts), *parts)

HEADER = json.dumps({"msg_id": "m", "msg_type": "stream", "session": "s", "version": "5.4"}).encode()
PARENT = json.dumps(parent["header"], default=str).encode()
"""


@dataclass(frozen=True, slots=True)
class Hostile:
    """A cell, its timeout in seconds, and what its result must say.

    The timeout is long for cells that end by themselves, and for those that must have begun to be what they are.
    """

    code: str
    state: Verdict
    status: str = "error"
    cause: str | None = None
    interrupted: str | None = None
    exit_code: int | None = None
    timeout: float = BOUND
    says: str = ""
    then: str = ""  # what the next cell says of the state, where that is not what follows from this one


STREAMS = {
    "stdout is replaced": Hostile("sys.stdout = None; sys.stderr = 5; print('nowhere')", KEPT, "ok"),
    "the display hook is replaced": Hostile("sys.displayhook = 7; 1", KEPT, says="TypeError"),
    "stdout is closed": Hostile("sys.stdout.close(); sys.__stdout__.close(); sys.stderr.close()", KEPT, "ok"),
    "surrogates in output": Hostile(r"print('\ud800 \udfff'); sys.stderr.write('\udc80')", KEPT, "ok", says="\\ud800 \\udfff"),
    "surrogates in a value": Hostile(r"'\ud800'", KEPT, "ok"),
    "surrogates in an error": Hostile(r"raise ValueError('\ud800 here')", KEPT, says="ValueError"),
    "surrogates in a display": Hostile(r"display({'text/plain': 'x\ud800', '\udfff': 'y'}, raw=True); print('on')", KEPT, "ok"),
    "NUL and escapes in output": Hostile(r"print('a\x00b\x1b[31mc\x1b]0;t\x07d')", KEPT, "ok", says="bcd"),
    "descriptors 1 and 2 are closed": Hostile("os.close(1); os.close(2); print('still')", KEPT, "ok", says="still"),
    "endless large prints": Hostile("while True: print('x' * 10**6)", KEPT, interrupted="timeout", exit_code=124, timeout=1.0),
    "endless output of C": Hostile(
        "while True: os.write(1, b'y' * 65536)", KEPT, interrupted="timeout", exit_code=124, timeout=1.0
    ),
    "endless output of a command": Hostile("!yes", KEPT, interrupted="timeout", exit_code=124, timeout=1.0),
    "a line without an end": Hostile("print('x' * 100_000_000)", KEPT, "ok"),
    "a thread that never stops printing": Hostile(
        "threading.Thread(target=lambda: [print('t', flush=True) for _ in iter(int, 1)], daemon=True).start()", KEPT, "ok"
    ),
}
VALUES = {
    "a message of 200 MB": Hostile("display({'text/plain': 'x' * 200_000_000}, raw=True)", KEPT, "ok"),
    "a value of 200 MB": Hostile("'x' * 200_000_000", KEPT, "ok"),
    "a repr that never ends": Hostile(
        "class R:\n    def __repr__(self):\n        while True: pass\nR()",
        KEPT,
        interrupted="timeout",
        exit_code=124,
        timeout=0.5,
    ),
    "a repr that raises": Hostile(
        "class R:\n    def __repr__(self): raise RuntimeError('r')\nR()", KEPT, says="RuntimeError: r"
    ),
    "an error that cannot say what it is": Hostile(
        "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E", KEPT
    ),
    "an error of 100 MB": Hostile("raise ValueError('x' * 100_000_000)", KEPT),
    "an error that is a BaseException": Hostile("class B(BaseException): pass\nraise B('b')", KEPT, says="B: b"),
    "an interrupt of its own": Hostile("raise KeyboardInterrupt", KEPT),
    "SystemExit": Hostile("raise SystemExit(5)", KEPT),
    "endless recursion": Hostile("def f(): return f()\nf()", KEPT, says="RecursionError"),
    "twenty thousand display updates": Hostile(
        "h = display('a', display_id=True)\nfor n in range(20_000): h.update('u' * 100 + str(n))",
        KEPT,
        "ok",
        says="19999",
    ),
    "thousands of display ids": Hostile("for n in range(3000): display(n, display_id=str(n))", KEPT, "ok"),
    "deep JSON in a display": Hostile(
        "x = []\nfor _ in range(500): x = [x]\ndisplay({'application/json': x, 'text/plain': 'deep'}, raw=True)", KEPT, "ok"
    ),
    "NaN in a display": Hostile("display({'application/json': {'a': float('nan')}}, raw=True); print('on')", KEPT, "ok"),
}
DEATHS = {
    "os._exit": Hostile("os._exit(3)", LOST, cause="exited", exit_code=3),
    "exit()": Hostile("exit()", LOST, cause="exited", exit_code=1),
    "exit() under load": Hostile("print('x' * 10**7); exit()", LOST, cause="exited", exit_code=1),
    "SIGKILL": Hostile("os.kill(os.getpid(), signal.SIGKILL)", LOST, cause="killed", exit_code=137),
    "SIGTERM": Hostile("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", LOST, cause="killed", exit_code=143),
    "abort": Hostile("os.abort()", LOST, cause="crashed", exit_code=134),
    "segfault": Hostile("ctypes.string_at(0)", LOST, cause="crashed", exit_code=139),
    "segfault in a thread": Hostile(
        "t = threading.Thread(target=ctypes.string_at, args=(0,)); t.start(); t.join()", LOST, cause="crashed", exit_code=139
    ),
    "its whole process group is killed": Hostile("os.killpg(0, signal.SIGKILL)", LOST, cause="killed", exit_code=137),
    "the shutdown of its kernel": Hostile("kernel.do_shutdown(False); os._exit(0)", LOST, cause="exited", exit_code=1),
}
STUBBORN = {
    "SIGSTOP": Hostile("os.kill(os.getpid(), signal.SIGSTOP)", LOST, cause="timeout", interrupted="timeout", timeout=slow(2)),
    "every interrupt is swallowed": Hostile(
        "print('stubborn')\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
        LOST,
        cause="timeout",
        interrupted="timeout",
        timeout=slow(2),
        says="stubborn",
    ),
    "interrupts are ignored": Hostile(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        LOST,
        cause="timeout",
        interrupted="timeout",
        timeout=slow(2),
    ),
    "interrupts are blocked": Hostile(
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nwhile True: pass",
        KEPT,
        interrupted="timeout",
        exit_code=124,
        timeout=0.5,
    ),
    "an await that swallows its cancellation": Hostile(
        "async def stay():\n    while 1:\n        try: await asyncio.sleep(9)\n        except BaseException: 0\nawait stay()",
        LOST,
        cause="timeout",
        interrupted="timeout",
        timeout=slow(2),
    ),
    "the control thread is gone": Hostile(
        "kernel.control_thread.stop(); time.sleep(60)", KEPT, interrupted="timeout", exit_code=124, timeout=1.0
    ),
    "a finally without an end": Hostile(
        "try: time.sleep(60)\nfinally:\n    while True: pass", KEPT, interrupted="timeout", exit_code=124, timeout=0.5
    ),
    "a command that traps every signal": Hostile(
        "!trap '' INT TERM HUP; while :; do sleep 1; done", KEPT, interrupted="timeout", exit_code=124, timeout=0.5
    ),
    "a regular expression that holds the lock": Hostile(
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", KEPT, interrupted="timeout", exit_code=124, timeout=0.5
    ),
    "C code that holds the lock": Hostile(
        "ctypes.PyDLL(None).sleep(3600)", KEPT, interrupted="timeout", exit_code=124, timeout=0.5
    ),
    "a burst of processes": Hostile(
        "!for i in $(seq 200); do sleep 600 & done; wait", KEPT, interrupted="timeout", exit_code=124, timeout=1.0
    ),
    "children that left every group": Hostile(
        "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" INT TERM; sleep 600 & sleep 600'])\ntime.sleep(60)",
        KEPT,
        interrupted="timeout",
        exit_code=124,
        timeout=0.5,
    ),
}
LIES = {
    "a forged idle": Hostile(
        "publish('status', {'execution_state': 'idle'}); time.sleep(0.3); print('end')", KEPT, "ok", says="end"
    ),
    "a thousand forged idles": Hostile(
        "for _ in range(1000): publish('status', {'execution_state': 'idle'})\nprint('end')", KEPT, "ok", says="end"
    ),
    "a forged reply": Hostile("reply({'status': 'ok'}); time.sleep(0.2); print('end')", KEPT, "ok", says="end"),
    "a forged end": Hostile(
        "reply({'status': 'ok'}, metadata={'kernelexec': {'token': kernel.options.token}})\n"
        "publish('status', {'execution_state': 'idle'}); time.sleep(0.5)",
        KEPT,
        "ok",
    ),
    "replies of the wrong kind": Hostile(
        "for content in ({}, {'status': 5}, {'payload': 7}): reply(content, metadata={'kernelexec': []})\ntime.sleep(0.2)",
        KEPT,
        "ok",
    ),
    "questions of which it reads no answer": Hostile(
        "kernel.control_thread.io_loop.add_callback(time.sleep, 4); time.sleep(0.2)\n"
        "question = {'token': kernel.options.token, 'name': 'x' * 20_000, 'words': []}\n"
        "for n in range(5000): publish('kernelexec_program', question)",
        KEPT,
        "ok",
    ),
    "a forged question": Hostile(
        "kernel.session.send(kernel.stdin_socket, 'input_request', {'prompt': '?'}, parent=parent)", KEPT, "ok"
    ),
    "frames that are no message": Hostile(
        "for n in range(100): send_raw(b'x' * n, b'', b'<IDS|MSG>')\nprint('end')", KEPT, "ok", says="end"
    ),
    "messages without a signature": Hostile(
        "for _ in range(100): send_raw(b'<IDS|MSG>', b'', HEADER, PARENT, b'{}', b'{}')", KEPT, "ok"
    ),
    "signed garbage": Hostile(
        "for part in (b'', b'no', b'[]', b'1', b'\\xff', b'NaN', b'{' * 99999, b'[' * 99999):\n"
        "    for at in range(4):\n"
        "        parts = [HEADER, PARENT, b'{}', b'{}']\n        parts[at] = part\n        send_signed(*parts)\n"
        "print('end')",
        KEPT,
        "ok",
        says="end",
    ),
    "messages of ten thousand frames": Hostile(
        "for _ in range(20): send_raw(*[b'f'] * 10_000)\nprint('end')", KEPT, "ok", says="end"
    ),
    "five thousand messages of nobody": Hostile(
        "for n in range(5000): publish('stream', {'text': 'n'}, parent={'header': {'msg_id': str(n)}})\nprint('end')",
        KEPT,
        "ok",
        says="end",
    ),
    "a stream that is no text": Hostile(
        "for value in (None, 5, [], {}, ['x'] * 1000): publish('stream', {'name': value, 'text': value})\nprint('end')",
        KEPT,
        "ok",
        says="end",
    ),
    "idle is swallowed": Hostile(
        "send = kernel.session.send\n"
        "def lie(stream, kind, content=None, *a, **k):\n"
        "    if not (kind == 'status' and content['execution_state'] == 'idle'): return send(stream, kind, content, *a, **k)\n"
        "kernel.session.send = lie\nprint('end')",
        KEPT,
        "ok",
        says="end",
    ),
    "replies are swallowed": Hostile(
        "send = kernel.session.send\n"
        "def lie(stream, kind, *a, **k):\n"
        "    if not str(kind).endswith('_reply'): return send(stream, kind, *a, **k)\n"
        "kernel.session.send = lie\nprint('end')",
        LOST,
        says="end",
    ),
    "nothing is sent any more": Hostile(
        "kernel.session.send = lambda *a, **k: None\nprint('end')", LOST, interrupted="timeout", timeout=slow(2)
    ),
    "the signing key is changed": Hostile("kernel.session.key = b'other'", LOST, interrupted="timeout", timeout=slow(2)),
}
PLACES = {
    "every descriptor is closed": Hostile("os.closerange(3, 4096)", LOST),
    "every descriptor leads to /dev/null": Hostile(
        "null = os.open('/dev/null', os.O_RDWR)\nfor fd in range(3, 256):\n    if fd != null: os.dup2(null, fd)",
        LOST,
    ),
    "no descriptor is left": Hostile(
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); open('/dev/null')",
        KEPT,
        says="Too many open files",
    ),
    "its sockets are gone": Hostile("for path in place.iterdir():\n    if path.is_socket(): path.unlink()", KEPT, "ok"),
    "its whole directory is gone": Hostile("import shutil; shutil.rmtree(place, ignore_errors=True)", KEPT, "ok"),
    "its working directory is gone": Hostile(
        "import shutil; shutil.rmtree(os.getcwd(), ignore_errors=True); print('end')", KEPT, "ok", says="end"
    ),
    "its pipes are full of garbage": Hostile(
        "for name in ('ready', 'owner'): os.write(os.open(place / name, os.O_RDWR | os.O_NONBLOCK), b'x' * 4096)",
        KEPT,
        "ok",
    ),
    "its stacks are a link": Hostile(
        "(place / 'stacks').unlink(); (place / 'stacks').symlink_to('/etc/passwd')\n"
        "while True:\n    try: time.sleep(60)\n    except BaseException: pass",
        LOST,
        cause="timeout",
        interrupted="timeout",
        timeout=slow(2),
    ),
    "its namespace is empty": Hostile("get_ipython().user_ns.clear()", KEPT, "ok", then="kept"),
    "it no longer knows any request": Hostile("kernel.shell_handlers.clear()", KEPT, "ok", then="lost"),
    "its iopub thread is stopped": Hostile("kernel.iopub_thread.stop(); print('x')", LOST),
    "a copy of itself": Hostile(
        "pid = os.fork()\nif pid == 0:\n    time.sleep(600)\nprint('parent')", KEPT, "ok", says="parent"
    ),
    "a copy that runs on as the kernel": Hostile("os.fork(); print('both')", KEPT, "ok"),
    "a thread that holds the lock for long": Hostile(
        "sys.setswitchinterval(1e6)\n"
        "threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start()\ntime.sleep(60)",
        LOST,
        cause="timeout",
        interrupted="timeout",
        timeout=slow(2),
    ),
}
CELLS: dict[str, Hostile] = {**STREAMS, **VALUES, **DEATHS, **STUBBORN, **LIES, **PLACES}
