"""The guide's picture of a session: cells typed into ``kernelexec repl``, and the terminal as an SVG.

``python -m tests.support.session_picture`` runs the cells on this machine and writes ``kernelexec/guide/session.svg``. It
leaves out the notes about this machine at the start, and the path of the connection file. A checkpoint follows each cell,
also where a fork takes long because the machine is busy.
"""

from __future__ import annotations

import html
import re
import sys
import tempfile
import textwrap
from pathlib import Path

from kernelexec.cli.terminal import NOTE_SIGN
from tests.support.command_line import COMMAND
from tests.support.paths import ROOT
from tests.support.terminal import Terminal

PICTURE = ROOT / "kernelexec" / "guide" / "session.svg"
_WORDS = ["repl", "--isolation", "local", "--timeout", "5"]
_CELLS = (
    "import numpy as np, matplotlib.pyplot as plt; prices = np.array([3, 5, 8])",
    "plt.plot(prices);",
    "while True: pass",
    "print(prices.sum())",
    "import os; os._exit(3)",
    "prices",
)
_PROMPT = r"In \[\d+\]: "
_NOTE = f"{NOTE_SIGN} kernelexec: "
#: The width of the terminal, in characters.
_COLUMNS = 98
#: Sizes in pixels. The advance is that of common monospace fonts of this size.
_FONT, _ADVANCE, _LINE, _MARGIN, _BAR = 14, 8.43, 19, 16, 32
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
_BACKGROUND, _BORDER, _TEXT, _GREEN, _YELLOW, _RED = "#161b22", "#444c56", "#d1d7e0", "#7ee787", "#e3b341", "#ff7b72"


def record(directory: Path) -> list[str]:
    """Run the cells in a directory and return the lines of the terminal."""
    lines = [f"$ kernelexec {' '.join(_WORDS)}"]
    with Terminal([COMMAND, *_WORDS], cwd=directory, KERNELEXEC_CHECKPOINTS="each") as terminal:
        prompt = _last_prompt(terminal.expect(_PROMPT))
        for number, cell in enumerate(_CELLS):
            terminal.send(f"{cell}\r")
            terminal.expect(re.escape(f"{prompt}{cell}\n"))  # after the typing, the prompt writes the whole cell
            output = terminal.expect(_PROMPT)
            shown = output[: output.rindex("In [")].splitlines()
            lines.append(f"{prompt}{cell}")
            lines += [line for line in shown if not _is_local(line, is_first=number == 0)]
            prompt = _last_prompt(output)
    return [part for line in lines for part in textwrap.wrap(line, _COLUMNS, drop_whitespace=False) or [""]]


def _last_prompt(text: str) -> str:
    return [prompt[0] for prompt in re.finditer(_PROMPT, text)][-1]


def _is_local(line: str, *, is_first: bool) -> bool:
    return line.startswith(_NOTE) and (is_first or "connection.json" in line)


def draw(lines: list[str]) -> str:
    """Return a terminal with these lines as an SVG, which needs no font and no address of its own."""
    width = round(_COLUMNS * _ADVANCE) + 2 * _MARGIN
    height = len(lines) * _LINE + _BAR + _MARGIN
    buttons = [
        f'<circle cx="{_MARGIN + 4 + 20 * index}" cy="{_BAR // 2}" r="6" fill="{color}"/>'
        for index, color in enumerate((_RED, _YELLOW, _GREEN))
    ]
    rows = [
        f'<text x="{_MARGIN}" y="{_BAR + _FONT + index * _LINE}" xml:space="preserve">{_markup(line)}</text>'
        for index, line in enumerate(lines)
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
        "<title>A session of kernelexec in a terminal</title>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{_BACKGROUND}" stroke="{_BORDER}"/>',
        *buttons,
        f'<g font-family="{_FONTS}" font-size="{_FONT}" fill="{_TEXT}">',
        *rows,
        "</g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _markup(line: str) -> str:
    text = html.escape(line, quote=False)
    if prompt := re.match(_PROMPT, line):
        return f'<tspan fill="{_GREEN}">{prompt[0]}</tspan>{html.escape(line[prompt.end() :], quote=False)}'
    if line.startswith(_NOTE):
        return f'<tspan fill="{_YELLOW}">{text}</tspan>'
    if re.match(r"-{9}|\w+(Error|Interrupt)\b", line):
        return f'<tspan fill="{_RED}">{text}</tspan>'
    return text


def texts(svg: str) -> list[str]:
    """Return the lines of the terminal in an SVG."""
    lines = re.findall(r"<text [^>]*>(.*)</text>", svg)
    return [html.unescape(re.sub(r"</?tspan[^>]*>", "", line)) for line in lines]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        PICTURE.write_text(draw(record(Path(directory))), encoding="utf-8")
    sys.stdout.write(f"{PICTURE}\n")
