"""The command line at a real terminal: what kernels print and what files, sessions and errors are named never drives it."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from pathlib import Path

import pytest

from tests.support.command_line import BOUND, COMMAND, environment
from tests.support.night import at_night
from tests.support.terminal_sequences import SEQUENCES, harm

LOCAL = ("--isolation", "local")


def run(cwd: Path, *words: str, **env: str) -> str:
    """What a command writes to a terminal of its own."""
    fd, side = pty.openpty()
    termios.tcsetwinsize(side, (50, 400))
    variables = environment(TERM="xterm-256color") | env
    process = subprocess.Popen([COMMAND, *words], cwd=cwd, env=variables, stdin=side, stdout=side, stderr=side)
    os.close(side)
    raw = b""
    try:
        while chunk := os.read(fd, 65536):
            raw += chunk
    except OSError:  # the other side is closed
        pass
    finally:
        process.wait(BOUND)
        os.close(fd)
    return raw.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def test_no_sequence_of_a_cell_passes_wherever_it_is_cut(tmp_path: Path) -> None:
    cell = f"""
import sys, os
for number, sequence in enumerate({[sequence.encode("utf-8", "surrogatepass") for sequence in SEQUENCES]!r}):
    for cut in range(len(sequence) + 1):
        stream = (sys.stdout, sys.stderr)[cut % 2]
        stream.write(sequence[:cut].decode("utf-8", "replace")); stream.flush()
        stream.write(sequence[cut:].decode("utf-8", "replace")); stream.flush()
        os.write(1, sequence[:cut]); os.write(1, sequence[cut:])
    print("\\nsequence", number, flush=True)
"""
    (tmp_path / "cell.py").write_text(cell)
    raw = run(tmp_path, "exec", cell, *LOCAL, "--timeout", "60")
    assert harm(raw) == []
    assert f"sequence {len(SEQUENCES) - 1}" in raw


def test_pieces_that_come_apart_make_no_sequence_and_colours_stay(tmp_path: Path) -> None:
    pieces = ("A\x1b", "]52;c;UFdORUQ=", "\x1b", "\\B ", "\x1b", "[6n", "\x1b[3", "1mred\x1b[0m", "\u202eend")
    code = f"import time\nfor piece in {pieces!r}:\n    print(piece, end='', flush=True)\n    time.sleep(0.05)"
    raw = run(tmp_path, "exec", code, *LOCAL)
    assert harm(raw) == []
    assert "AB \x1b[31mred\x1b[0m\\u202eend" in raw
    (tmp_path / "cells.py").write_text(code)
    beside_the_bar = run(tmp_path, "run", "cells.py", *LOCAL)
    assert "UFdORUQ" not in beside_the_bar
    assert "\x1b[6n" not in beside_the_bar
    assert "\u202e" not in beside_the_bar


def test_a_cell_cannot_imitate_a_remark_nor_hide_one(tmp_path: Path) -> None:
    code = (
        "import sys, os\nprint('\\u25c8 kernelexec: all is well', '[bold]markup[/bold]', flush=True)\n"
        "print('one\\ntwo\\x1b[9A\\x1b[8m\\x1b[31m', end='', flush=True)\n"
        "globals()['n\\n\\u25c8 kernelexec: kept'] = 1\nopen('f\\x1b]0;t\\x07', 'w').close()\nos._exit(3)"
    )
    raw = run(tmp_path, "exec", code, *LOCAL)
    assert harm(raw.replace("\x1b[31m", "")) == []
    assert "\\u25c8 kernelexec: all is well [bold]markup[/bold]\n" in raw
    remarks = [line for line in raw.split("\n") if "\u25c8 kernelexec: " in line]
    assert any("the kernel is gone (exited); state lost" in line for line in remarks)
    assert all(line.startswith(("\u25c8", "\x1b[0m")) for line in remarks)
    assert raw.index("\x1b[31m") < raw.index("\x1b[0m") < raw.index("\u25c8 kernelexec: ")


@pytest.mark.parametrize(
    "words",
    [
        ("files", "list"),
        ("files", "read", "\x1b]0;title\x07\u202e\nkernelexec: fake"),
        ("run", "bad\x1b[6n.ipynb", *LOCAL),
        ("exec", "raise ValueError('\\x1b]0;t\\x07\\x9b6n\\u202e')", *LOCAL),
        ("exec", "1", "--isolation", "\x1b[6n"),
        ("\x1b[6n",),
        ("stop", "\x1b[6n"),
        *at_night(
            ("files", "read", "missing\x1b[6n\n\u25c8 kernelexec: fake"),
            ("run", "missing\x1b]52;c;YQ==\x07.py", *LOCAL),
            ("exec", "1", "--language", "\x1b[6nlang", *LOCAL),
            ("exec", "1", "--timeout", "\x1b[6n", *LOCAL),
            ("sessions", "list"),
            ("logs", "\x1b[6n"),
            ("attach", "\x1b[6n"),
            ("ps",),
        ),
        ("exec", "1", "--workspace", "\x1b[6n", *LOCAL),
    ],
    ids=ascii,
)
def test_names_and_errors_never_drive_the_terminal(words: tuple[str, ...], tmp_path: Path) -> None:
    name = "\x1b]0;title\x07\u202e\nkernelexec: fake"
    (tmp_path / name).write_text("\x1b]52;c;YQ==\x07\x9b6n")
    (tmp_path / "bad\x1b[6n.ipynb").write_text('{"\\u001b[6n": "\\u009b6n"')
    raw = run(tmp_path, *words)
    assert harm(raw.replace("\x1b[?25l", "").replace("\x1b[?25h", "").replace("\x1b[2K", "")) == []
    assert "\nkernelexec: fake" not in raw
