"""Cells that run over their timeout, from the meek to the stubborn, and the steps that may end each."""

from __future__ import annotations

from dataclasses import dataclass

#: The steps that keep the state.
KEEPING = ("interrupt", "signal", "cancel", "command")


@dataclass(frozen=True, slots=True)
class Overrun:
    """A cell that does not end by itself; the steps that may end it."""

    code: str
    steps: tuple[str, ...] = KEEPING
    prepared: str = "import asyncio, ctypes, re, signal, subprocess, time"


OVERRUNS: dict[str, Overrun] = {
    "sleep": Overrun("time.sleep(600)", ("interrupt",)),
    "busy loop": Overrun("while True: pass", ("interrupt",)),
    "subprocess": Overrun("subprocess.run(['sleep', '600'])", ("interrupt",)),
    "%%bash": Overrun("%%bash\nsleep 600", ("interrupt",)),
    "!cmd": Overrun("!sleep 600", ("interrupt",)),
    "execute_command": Overrun("get_ipython().run_command('sleep 600')", ("interrupt",)),
    "!cmd that traps INT": Overrun("!trap '' INT; while :; do sleep 1; done", ("interrupt",)),
    "stuck await": Overrun("await asyncio.Event().wait()", ("interrupt",)),
    "await that shields": Overrun("await asyncio.shield(asyncio.sleep(600))", ("interrupt",)),
    "await, interrupts ignored": Overrun("signal.signal(signal.SIGINT, signal.SIG_IGN)\nawait asyncio.sleep(600)", ("cancel",)),
    "regex that holds the GIL": Overrun("re.match(r'(a+)+$', 'a' * 40 + 'b')", ("signal",)),
    "C call that holds the GIL": Overrun("ctypes.PyDLL(None).sleep(600)", ("signal",)),
    "command that only dies by force": Overrun(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "subprocess.run(['sh', '-c', 'trap \"\" INT TERM; sleep 600 & wait; sleep 600'])",
        ("command",),
    ),
    "swallowed KeyboardInterrupt": Overrun("while True:\n    try: time.sleep(600)\n    except BaseException: pass", ("kill",)),
}
