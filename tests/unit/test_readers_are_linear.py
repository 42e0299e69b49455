"""What reads a kernel's text in the owner's process takes time in proportion to it: no cell stops the other sessions.

The times of a text and of one four times as long are compared, each the shortest of several, of this thread alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kernelexec.cli.terminal import TerminalFilter
from kernelexec.mcp.tools.code_tools import unwrap_code
from kernelexec.records.notebook.notebook_formats import read_script
from kernelexec.records.notebook.notebook_io import notebook_output
from kernelexec.results import DisplayData, Error, ExecutionResult, Output, Stream, output_text, strip_ansi
from kernelexec.results.model_answers import compact_tables, render_table
from kernelexec.results.outputs import read_audio
from kernelexec.results.readable import describe_widget
from kernelexec.results.views import make_bundle
from kernelexec.rules.diagnosis import diagnose
from kernelexec.rules.diagnosis.diagnosis import MESSAGES
from kernelexec.rules.replay_safety import OutsideUse
from kernelexec.rules.secrets.store import Masker
from kernelexec.session.model_prompts import write_debug_prompt
from kernelexec.text import TextBudget, TextRun, apply_cursor_moves, apply_returns, clean_text, escape_line, quote_output

#: Lengths in characters, the factor by which the time may grow for one of 4 (16 is that of a square), and a time that is none.
SHORT, LONG, MOST, NONE_SECONDS = 12_000, 48_000, 9, 0.01


def display(mime: str, template: Any) -> Callable[[str], object]:
    """The text of a display that has the text in the place of an x."""

    def fill(value: Any, text: str) -> Any:
        if isinstance(value, dict):
            return {key: fill(item, text) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item, text) for item in value]
        return value.replace("x", text) if isinstance(value, str) else value

    return lambda text: output_text([DisplayData({mime: fill(template, text)})])


def explain(text: str) -> object:
    error = Error("E", text, (f"Cell In[1], line 1\n{text}", f"E: {text}"))
    return diagnose("error", 1, None, None, [Stream("stderr", text), error], "x = 1\ny = 2")


def explain_group(text: str) -> object:
    """A group of one exception, whose line in the tree is cut nowhere before."""
    tree = ("  +-+---------------- 1 ----------------", f"    | E: {text}", "    +----", "ExceptionGroup: m")
    return diagnose("error", 1, None, None, [Error("ExceptionGroup", "m", tree)])


def explain_frames(text: str) -> object:
    """A traceback with many frames of one long line, whose text is that of a magic."""
    frames = "Cell In[1], line 1\n----> 1 get_ipython().x\n" * (len(text) // 400)
    return diagnose("error", 1, None, None, [Error("E", "x", (frames, "E: x"))], f" {text * 4}")


def read_exceptions(text: str) -> str:
    """An output, and exceptions that it shows already."""
    return output_text([Stream("stdout", f"{text}\nE: x"), *[Error("E", "x")] * (len(text) // 400)])


def read_sound(text: str) -> object:
    """A sound behind several starts: more for a longer text, though the pattern looks at a limited number."""
    return read_audio(DisplayData({"text/html": f'{"<audio " * (len(text) // 1700)} src="data:audio/a;base64,{text * 4}<'}))


def add_to_run(text: str) -> str:
    budget = TextBudget(10**6)
    run = TextRun("stdout", budget)
    for begin in range(0, len(text), 100):
        run.append(text[begin : begin + 100])
    return run.text()


def mask_in_pieces(text: str) -> str:
    masking = MASKER.stream_masker()
    pieces = [masking.feed(text[begin : begin + 100]) for begin in range(0, len(text), 100)]
    return "".join([*pieces, masking.flush(is_last=True)])


def follow_use(text: str) -> None:
    """The words of a cell; the owner judges them where cells run again."""
    use = OutsideUse(lambda _: False)
    use.learn("def x():\n    open('x')")
    use.explain_difference(text, is_new=True)
    use.reads_files(text)
    use.changes_files(text)


def table(text: str) -> Output:
    return next(compact_tables([DisplayData({"text/html": f"<table {text}", "text/plain": "x"})]))


HIDDEN = "sk-proj-Q7x9Lm2Rt5Vw8Zb1"
MASKER = Masker([("KEY", HIDDEN)])
READERS: dict[str, Callable[[str], object]] = {
    "HTML": display("text/html", "<p>x"),
    "SVG": display("image/svg+xml", "<svg>x"),
    "a script": display("text/html", "vega <script>})({x"),
    "a title of plotly": display("application/vnd.plotly.v1+json", {"layout": {"title": "x"}, "data": [{"name": "x"}]}),
    "a title of Vega": display("application/vnd.vegalite.v5+json", {"title": ["x", "x"], "mark": "x"}),
    "plain text": display("text/plain", "<x"),
    "JSON": display("application/json", ["x"]),
    "a widget": lambda text: describe_widget({"w": {"_model_name": "HTMLModel", "value": text, "description": text}}, "w"),
    "a table": table,
    "rows of a table": lambda text: render_table(f"<table><tr>{text}"),
    "a frame of a notebook": lambda text: make_bundle([DisplayData({"text/html": text})]),
    "a sound": lambda text: read_audio(DisplayData({"text/html": f"data:audio/{text}"})),
    "a sound behind starts": read_sound,
    "exceptions shown already": read_exceptions,
    "a stream": lambda text: output_text([Stream("stdout", text)]),
    "a stream in pieces": add_to_run,
    "escape sequences": strip_ansi,
    "carriage returns": apply_returns,
    "moves of a cursor": apply_cursor_moves,
    "surrogates": clean_text,
    "a name": escape_line,
    "a quotation": quote_output,
    "a terminal": lambda text: TerminalFilter(moves=True).feed(text),
    "a traceback": explain,
    "frames of one line": explain_frames,
    "an exception group": explain_group,
    "patterns of messages": lambda text: [pattern.search(text) for pattern in MESSAGES],
    "a failed command": lambda text: diagnose("error", 127, None, None, [Stream("stderr", text)], "!x"),
    "secrets": MASKER.mask_text,
    "secrets of a stream": mask_in_pieces,
    "a prompt": lambda text: write_debug_prompt(text, ExecutionResult("i", "s", "error", outputs=(Stream("stderr", text),))),
    "a notebook's output": lambda text: notebook_output(DisplayData({"text/html": text, "image/svg+xml": text})),
    "words of a cell": follow_use,
    "sent code": lambda text: unwrap_code(text, "python"),
    "sent code before a fence": lambda text: unwrap_code(f"{text}```", "python"),
    "sent code behind a fence": lambda text: unwrap_code(f"a b\n```{text}", "python"),
    "sent code in fences": lambda text: unwrap_code(f"a b\n```{text}```", "python"),
    "a script of cells": lambda text: read_script(f"# %% [markdown] a=1 {text}\n{text}"),
    "the beginning of a script": read_script,
    "the header of a script": lambda text: read_script(f"# ---\n#{text}\n# ---\n{text}"),
    "a script of jupytext": lambda text: read_script(
        f"# ---\n# jupyter: {{jupytext: 1}}\n# ---\nx\n{text}\ny\n# %%\nx\n{text}\ny"
    ),
    "a value": lambda text: ExecutionResult("i", "s", "ok", outputs=(DisplayData({"text/plain": text}),)).text,
}
PIECES = [
    *(
        " ",
        "<",
        "a ",
        "\n",
        "\t\n",
        "[",
        "[ ",
        "[\u200b",
        ".",
        "\r",
        "\x08",
        "0",
        "'",
        "\udc80",
        "\u00e9",
        "\U0001f600",
        "/a",
        "a.",
    ),
    *("\x1b", "\x1b[", "\x1b]", "\x1b[1A", "\x1b[1A\n", "\x1b[ ", "data:audio/a;base64,"),
    *("<a ", "<a b='", "<!--", "<br", "<br ", "<td>", "<script>", "&", "&#", "&a", "<table ", 'class="', "height ", "<source "),
    *(HIDDEN[:12], HIDDEN[-12:], f"{HIDDEN[:8]}...", f"{HIDDEN[:5]}\n", "...", "`"),
    *(f"{HIDDEN[:4]}X...", f"{HIDDEN[:4]}X'\u2026"),
    *(
        "File x:1\n",
        "---> 1 ",
        "a: ",
        "  + ",
        "| ",
        "line 1: ",
        "```",
        "```\n",
        "``` ",
        "\n- ",
        "fork",
        "Can't get <",
        "Can't get attribute '",
        "# ",
        "# ---\n",
        "# %%\n",
        "a=",
        '"""',
    ),
]


def seconds(read: Callable[[str], object], text: str) -> float:
    begin = time.thread_time()
    read(text)
    return time.thread_time() - begin


def repeat(piece: str, length: int) -> str:
    return piece * (length // len(piece))


def is_steeper(read: Callable[[str], object], make: Callable[[int], str]) -> bool:
    """Whether the time for a long text is too long beside that for a short one."""
    short, long = make(SHORT), make(LONG)
    if (first := seconds(read, long)) < NONE_SECONDS:
        return False
    most = MOST * min(seconds(read, short) for _ in range(3))
    return first > most and all(seconds(read, long) > most for _ in range(3))


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_four_times_the_text_takes_about_four_times_as_long(reader: Callable[[str], object]) -> None:
    assert [piece for piece in PIECES if is_steeper(reader, partial(repeat, piece))] == []


@pytest.mark.parametrize("ellipsis", ["...", "'\u2026"])
def test_a_beginning_of_a_secret_is_not_compared_for_each_ellipsis_after_it(ellipsis: str) -> None:
    cut, other = (repeat(f"{HIDDEN[:4]}X{end}", LONG) for end in (ellipsis, "," * len(ellipsis)))
    times = [min(seconds(MASKER.mask_text, text) for _ in range(5)) for text in (cut, other)]
    assert times[0] < 3 * MOST * times[1]  # 4 and 8 times as long; 100 and 280 where each ellipsis looks back


#: Ways to make a text of two pieces.
SHAPES: dict[str, Callable[[str, str, int], str]] = {
    "a pair, repeated": lambda first, second, length: repeat(first + second, length),
    "one, then the other": lambda first, second, length: repeat(first, length // 2) + repeat(second, length // 2),
    "one before the other": lambda first, second, length: first + repeat(second, length),
    "one behind the other": lambda first, second, length: repeat(second, length) + first,
}


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_two_pieces_in_any_shape_take_no_longer(reader: Callable[[str], object], shape: Callable[[str, str, int], str]) -> None:
    chosen = random.Random(5)  # noqa: S311 - a test that can be repeated
    pairs = [(chosen.choice(PIECES), chosen.choice(PIECES)) for _ in range(60)]
    assert [pair for pair in pairs if is_steeper(reader, partial(shape, *pair))] == []


def test_a_reader_that_is_not_is_found() -> None:
    def square(text: str) -> int:  # by far more in each step than what a step costs itself
        return sum(len(text[begin:].replace(" ", "b")) for begin in range(0, len(text), 8))

    assert is_steeper(square, partial(repeat, " "))
