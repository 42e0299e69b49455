"""Pictures of cells at real terminals: the bytes that arrive, where they arrive, and all the cases in which none may."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor
from tests.support.command_line import BOUND, COMMAND, LOCAL, cells_of, environment, kernelexec, notebook, refused, script
from tests.support.picture_terminal import (
    NAMES,
    QUESTION,
    SIXEL_ANSWER,
    display_cell,
    make_png,
    read_iterm2,
    read_kitty,
    read_sixels,
    show,
    without_pictures,
)
from tests.support.terminal import Terminal
from tests.support.terminal_sequences import SEQUENCES, harm

pytestmark = pytest.mark.nightly

PNG = make_png(300, 150)
CELL = display_cell(PNG)
NO_NAMES: Any = dict.fromkeys(NAMES, "")
KITTY: Any = {"TERM": "xterm-kitty"}
ITERM2: Any = {"TERM_PROGRAM": "iTerm.app"}
NOISE = (
    "import io, PIL.Image\npicture, file = PIL.Image.effect_noise(({0}, {1}), 90), io.BytesIO()\n"
    "picture.save('noise.png'); picture.save(file, 'PNG')\n"
    "display({{'image/png': __import__('base64').b64encode(file.getvalue()).decode()}}, raw=True)"
)


def lines(raw: bytes) -> list[str]:
    return without_pictures(raw).decode().replace("\r\n", "\n").splitlines()


def test_kitty_gets_the_exact_png_in_pieces_once_and_in_its_place(tmp_path: Path) -> None:
    raw = show(tmp_path, "exec", NOISE.format(400, 300), *LOCAL, "--quiet", **KITTY)
    [drawn] = read_kitty(raw)
    assert drawn.content == (tmp_path / "noise.png").read_bytes()
    assert len(drawn.pieces) > 10
    assert set(drawn.pieces[:-1]) == {4096}
    raw = show(tmp_path, "exec", CELL, *LOCAL, **KITTY)
    [drawn] = read_kitty(raw)
    assert drawn.content == PNG
    assert QUESTION not in raw
    start = raw.index(b"\x1b_G")
    assert raw[:start].endswith(b"before\r\n<the picture>\r\n")
    assert raw[start:].endswith(b"\x1b\\\r\nafter\r\n")
    assert raw[start:].count(b"\x1b_G") == len(drawn.pieces)


def test_iterm2_gets_the_exact_file_in_its_columns_and_rows(tmp_path: Path) -> None:
    raw = show(tmp_path, "exec", CELL, *LOCAL, **ITERM2)
    [drawn] = read_iterm2(raw)
    assert drawn.content == PNG
    assert (drawn.keys["inline"], drawn.keys["width"], drawn.keys["height"]) == ("1", "30", "8")
    assert QUESTION not in raw
    [drawn] = read_iterm2(show(tmp_path, "exec", CELL, *LOCAL, size=(24, 20, 0, 0), **ITERM2))
    assert (drawn.keys["width"], drawn.keys["height"]) == ("20", "5")


def test_a_terminal_that_answers_sixel_gets_its_size_and_colours(tmp_path: Path) -> None:
    raw = show(tmp_path, "exec", f"{CELL}\n{CELL}", *LOCAL, answer=SIXEL_ANSWER)
    assert raw.count(QUESTION) == 1
    pictures = read_sixels(raw)
    assert [picture.size for picture in pictures] == [(300, 150)] * 2
    assert [pictures[1].getpixel(xy) for xy in ((0, 0), (149, 149), (150, 0), (299, 149))] == [
        (255, 0, 0, 255), (255, 0, 0, 255), (0, 0, 255, 255), (0, 0, 255, 255)
    ]  # fmt: skip
    [small] = read_sixels(show(tmp_path, "exec", CELL, *LOCAL, answer=SIXEL_ANSWER, size=(24, 20, 200, 480)))
    assert small.size == (200, 100)


def test_plots_of_a_script_stand_above_the_bar_once(tmp_path: Path) -> None:
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()\nprint('end', end='')"
    file = script(tmp_path, "print('first')", plot, CELL)
    raw = show(tmp_path, "run", file, *LOCAL, **KITTY)
    plotted, displayed = read_kitty(raw)
    assert plotted.image.width > 400
    assert displayed.content == PNG
    text = without_pictures(raw).decode()
    assert text.index("first") < text.index("<Figure size 640x480") < text.index("end") < text.index("before")
    assert text.count("<the picture>") == 1
    start, end = raw.index(b"\x1b_G"), raw.rindex(b"\x1b\\") + 2
    assert raw[:start].endswith(b"\x1b[2K")
    assert raw[end:].startswith(b"\r\n")
    assert b"after\r\n" in raw[end:]
    [again] = read_kitty(show(tmp_path, "run", notebook(tmp_path, plot), *LOCAL, **KITTY))
    [cell] = cells_of(tmp_path / "given.executed.ipynb")
    assert base64.b64decode(cell.outputs[0].data["image/png"]) == again.content


def test_several_files_at_once_show_none(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(CELL)
    raw = show(tmp_path, "run", "a.py", "b.py", "--jobs", "2", *LOCAL, **KITTY)
    assert b"\x1b_G" not in raw


@pytest.fixture
def repl(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened = list[Terminal]()

    def start(**env: str) -> Terminal:
        words = [COMMAND, "repl", *LOCAL]
        terminal = Terminal(words, cwd=tmp_path, **NO_NAMES | {"XDG_STATE_HOME": str(tmp_path / "state")} | env)
        opened.append(terminal.__enter__())
        terminal.expect(r"In \[1\]: ?")
        return terminal

    yield start
    for terminal in opened:
        terminal.__exit__(None, None, None)


def await_question(terminal: Terminal) -> None:
    while QUESTION not in terminal.raw:
        assert terminal.status() is None
        terminal.idle()


def send_until_question(repl: Callable[..., Terminal], tmp_path: Path, cell: str) -> Terminal:
    """Run a cell that shows a picture at the prompt, until the terminal is asked for its attributes."""
    (tmp_path / "picture.png").write_bytes(PNG)
    terminal = repl(TERM="xterm")
    terminal.send(f"from IPython.display import Image; {cell}\r")
    await_question(terminal)
    return terminal


def test_the_prompt_shows_the_picture_keeps_its_path_and_follows_on_a_line_of_its_own(
    repl: Callable[..., Terminal], tmp_path: Path
) -> None:
    (tmp_path / "picture.png").write_bytes(PNG)
    terminal = repl(**KITTY)
    terminal.send("from IPython.display import Image; Image('picture.png')\r")
    saved = terminal.expect(r"saved (outputs/\S+\.png)\n").split()[-1]
    terminal.expect(r"In \[2\]: ?")
    assert (tmp_path / saved).read_bytes() == PNG
    [drawn] = read_kitty(terminal.raw)
    assert drawn.content == PNG
    assert b"\x1b\\\r\n" in terminal.raw[terminal.raw.rindex(b"\x1b_G") :]
    terminal.send("20 + 22\r")
    terminal.expect(r"\n42\n")


def test_typing_during_a_terminal_query_is_at_the_next_prompt(repl: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = send_until_question(repl, tmp_path, "Image('picture.png')")
    terminal.send("20 +" + SIXEL_ANSWER.decode())
    terminal.expect(r"In \[2\]: 20 \+")
    terminal.send(" 22\r")
    terminal.expect(r"\n42\n")
    [drawn] = read_sixels(terminal.raw)
    assert drawn.size == (300, 150)


def test_typing_during_a_terminal_query_answers_the_cells_input(repl: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = send_until_question(repl, tmp_path, "display(Image('picture.png')); input('Name? ')")
    terminal.send("Ada\n" + SIXEL_ANSWER.decode())
    terminal.expect(r"Name\? Ada\n'Ada'\n")
    assert len(read_sixels(terminal.raw)) == 1


def test_the_terminal_is_not_asked_while_a_cell_awaits_input(repl: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PNG)
    waits = "def show():\n    while not os.path.exists('go'): time.sleep(0.01)\n    print(display(Image('picture.png')))\n"
    (tmp_path / "later.py").write_text(f"import os, threading, time\nfrom IPython.display import Image\n{waits}")
    terminal = repl(TERM="xterm")
    terminal.send("exec(open('later.py').read())\r")
    terminal.expect(r"In \[2\]: ?")
    terminal.send("threading.Thread(target=show).start(); input('Name? ')\r")
    terminal.expect(r"\nName\? ")
    (tmp_path / "go").touch()
    terminal.expect("Image object")
    terminal.send("Ada\n")
    terminal.expect(r"\n'Ada'\n")
    assert QUESTION not in terminal.raw
    assert b"\x1bP" not in terminal.raw


def test_text_that_was_typed_before_is_left_to_its_reader_and_nothing_is_asked(tmp_path: Path) -> None:
    raw = show(
        tmp_path, "exec", CELL, *LOCAL, typed=b"typed line\n", after='read line; echo "read: $line"', answer=SIXEL_ANSWER
    )
    assert QUESTION not in raw
    assert read_sixels(raw) == []
    assert raw.endswith(b"read: typed line\r\n")


def test_a_session_of_another_process_shows_its_pictures(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELEXEC_RUNTIME_DIR", str(short_path))
    with Executor("local", workspace=tmp_path, quiet=True) as executor:
        session = executor.session("with-pictures")
        session.execute("from IPython.display import Image")
        (session.workspace / "picture.png").write_bytes(PNG)
        with Terminal([COMMAND, "attach", session.name], cwd=tmp_path, **NO_NAMES | KITTY) as terminal:
            terminal.expect("with-pictures> ")
            terminal.send("Image('picture.png')\n")
            terminal.expect("with-pictures> ")
            [drawn] = read_kitty(terminal.raw)
            assert drawn.content == PNG
            terminal.send("\x04")
            assert terminal.end() == 0
        with Terminal([COMMAND, "attach", session.name], cwd=tmp_path, **NO_NAMES | {"TERM": "xterm"}) as terminal:
            terminal.expect("with-pictures> ")
            terminal.send("Image('picture.png')\n")
            await_question(terminal)
            terminal.send("20 + 22\n30 +" + SIXEL_ANSWER.decode())
            terminal.expect(r"with-pictures> 20 \+ 22\n42\n")
            terminal.expect(r"with-pictures> 30 \+")
            terminal.send(" 33\n")
            terminal.expect(r"63\n")
            assert len(read_sixels(terminal.raw)) == 1


@pytest.mark.parametrize(
    "env",
    [
        {"TERM": "dumb"}, {"TERM": "xterm-kitty", "NO_COLOR": "1"}, {"TERM": "xterm-kitty", "CI": "true"},
        {"TERM": "xterm-kitty", "KERNELEXEC_PICTURES": "never"}, {"TERM": "linux"},
    ],
)  # fmt: skip
def test_plain_terminals_get_text_alone(env: Any, tmp_path: Path) -> None:
    raw = show(tmp_path, "exec", CELL, *LOCAL, "--quiet", answer=SIXEL_ANSWER, **env)
    assert lines(raw)[-3:] == ["before", "<the picture>", "after"]
    assert b"\x1b" not in raw.replace(b"\x1b[0m", b"")


def test_a_terminal_that_does_not_answer_or_has_no_sixels_gets_text_alone(tmp_path: Path) -> None:
    two = f"{CELL}\n{CELL}"
    for answer in (None, b"\x1b[?62;22;40;14c", b"\x1b[?" + b"4" * 500 + b"c\x1b[?c"):
        raw = show(tmp_path, "exec", two, *LOCAL, "--quiet", answer=answer)
        assert raw.count(QUESTION) == 1
        assert lines(raw.replace(QUESTION, b""))[-6:] == ["before", "<the picture>", "after"] * 2
    assert QUESTION not in show(tmp_path, "exec", CELL, *LOCAL, owns=False)
    assert QUESTION not in show(tmp_path, "exec", "print(1)", *LOCAL, answer=SIXEL_ANSWER)


def test_inside_a_multiplexer_the_multiplexer_is_asked_and_nothing_is_wrapped(tmp_path: Path) -> None:
    tmux: Any = {"TERM": "tmux-256color", "TMUX": "/tmp/tmux-0/default,1,0", "KITTY_WINDOW_ID": "1", "LC_TERMINAL": "iTerm2"}
    raw = show(tmp_path, "exec", CELL, *LOCAL, answer=b"\x1b[?1;2;4c", **tmux)
    assert len(read_sixels(raw)) == 1
    assert (b"\x1bPtmux" in raw, b"\x1b_G" in raw, b"1337" in raw) == (False, False, False)
    raw = show(tmp_path, "exec", CELL, *LOCAL, answer=b"\x1b[?1;2c", **tmux)
    assert read_sixels(raw) == []


def test_the_option_goes_before_the_variable_and_both_before_the_terminal(tmp_path: Path) -> None:
    raw = show(tmp_path, "exec", CELL, *LOCAL, TERM="dumb", KERNELEXEC_PICTURES="iterm2")
    assert len(read_iterm2(raw)) == 1
    raw = show(tmp_path, "exec", CELL, *LOCAL, "--pictures", "sixel", KERNELEXEC_PICTURES="iterm2", **KITTY)
    assert (len(read_sixels(raw)), read_iterm2(raw), read_kitty(raw)) == (1, [], [])
    assert "'auto', 'kitty', 'iterm2', 'sixel', 'never'" in refused(kernelexec(tmp_path, "exec", "1", "--pictures", "best"))


def test_no_cell_sends_a_picture_or_any_sequence_of_its_own(tmp_path: Path) -> None:
    own = ("\x1b_Ga=T,f=100,q=2,m=0;AAAA\x1b\\", "\x1b]1337;File=inline=1:AAAA\x07", "\x1bP0;1;0q#0~\x1b\\", *SEQUENCES)
    cell = f"""
import base64, os, sys
for sequence in {[sequence.encode("utf-8", "surrogatepass") for sequence in own]!r}:
    text = sequence.decode("utf-8", "replace")
    print(text); print(text, file=sys.stderr); os.write(1, sequence)
    for content in (sequence, {PNG!r} + sequence, sequence + {PNG!r}):
        display({{"image/png": base64.b64encode(content).decode(), "text/plain": text}}, raw=True)
    display({{"image/png": text, "text/plain": text}}, raw=True, metadata={{"image/png": {{"width": text}}}})
    display({{"image/png": base64.b64encode({PNG!r}).decode() + text, "text/plain": "x"}}, raw=True)
"""
    (tmp_path / "cell.py").write_text(cell)
    for words in (("exec", cell), ("run", "cell.py")):
        raw = show(tmp_path, *words, *LOCAL, **KITTY)
        rest = without_pictures(raw).decode("utf-8", "surrogateescape").replace("\r\n", "\n")
        assert {drawn.content[: len(PNG)] for drawn in read_kitty(raw)} == {PNG}
        assert harm(rest.replace("\x1b[?25l", "").replace("\x1b[?25h", "")) == []
        assert b"1337" not in without_pictures(raw)


@pytest.mark.parametrize("protocol", ["kitty", "iterm2", "sixel"])
def test_invalid_pictures_leave_their_text_and_no_traceback(protocol: str, tmp_path: Path) -> None:
    header = PNG[:16] + (60_000).to_bytes(4, "big") * 2 + PNG[24:]
    cell = "\n".join(display_cell(content) for content in (b"no picture", PNG[:100], PNG[:-80], header, b"\xff\xd8\xff" + PNG))
    raw = show(tmp_path, "exec", cell, *LOCAL, "--quiet", "--pictures", protocol)
    assert lines(raw)[-16:-1] == ["before", "<the picture>", "after"] * 5
    assert "1 picture not shown here" in lines(raw)[-1]
    assert without_pictures(raw) == raw


def test_pictures_above_the_bound_of_a_cell_are_counted(tmp_path: Path) -> None:
    cell = "import PIL.Image\nPIL.Image.new('1', (8000, 3000)).save('large.png')\nfrom IPython.display import Image\n"
    cell += "for _ in range(4):\n    display(Image('large.png'))"
    raw = show(tmp_path, "exec", cell, *LOCAL, **KITTY)
    assert len(read_kitty(raw)) == 2
    assert "2 pictures not shown here" in lines(raw)[-1]


@pytest.mark.parametrize("words", [("exec", CELL), ("run", "cell.py", "--no-output")])
def test_pipes_and_files_get_the_same_bytes_whatever_is_chosen(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(CELL)
    outputs = set()
    for env in ({}, KITTY, {"KERNELEXEC_PICTURES": "sixel"}):
        variables: Any = environment() | env
        done = subprocess.run(
            [COMMAND, *words, *LOCAL], cwd=tmp_path, env=variables, capture_output=True, timeout=BOUND, check=True
        )
        outputs.add((done.stdout, done.stderr))
    [(stdout, _)] = outputs
    assert stdout == b"before\n<the picture>\nafter\n"


@pytest.mark.parametrize("words", [["--version"], ["exec", "1 + 1", "--isolation", "local"]])
def test_no_library_of_pictures_is_imported_without_a_picture(words: list[str], tmp_path: Path) -> None:
    code = (
        f"import sys\nsys.argv = ['kernelexec', *{words!r}]\nfrom kernelexec.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'PIL' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, timeout=BOUND, check=False
    )
    assert done.returncode == 0, done.stderr
