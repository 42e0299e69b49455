"""Outputs, results, tables and pictures for a terminal, or as plain lines for programs.

Pictures are sequences, bounded in size and number, and of nothing but base64 or sixels of ours. The content comes from
untrusted kernels: kind and size are read from the header before anything else.
"""

from __future__ import annotations

import base64
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING

from kernelexec.cli.stdio import CommandFailed, encode_json, write_guard, write_text
from kernelexec.cli.terminal import (
    RESET,
    PictureChoice,
    PictureProtocol,
    PictureTerminal,
    TerminalFilter,
    TerminalStream,
    format_remark,
    inner_stream,
    neutralise,
)
from kernelexec.provisioning import platform
from kernelexec.results import (
    DisplayData,
    Error,
    ExecuteResult,
    ExecutionResult,
    Image,
    Output,
    Stream,
    best_image,
    output_text,
)
from kernelexec.results.media import DECODED_PIXELS, decode_picture, is_whole_png
from kernelexec.results.one_line import count_things
from kernelexec.text import escape_line

if TYPE_CHECKING:
    import PIL.Image
    from rich.console import Console

#: What a cell may show: the pixels of its pictures together, and their sequences in characters.
_CELL_PIXELS, _CELL_CHARS = DECODED_PIXELS, 16 * 1024 * 1024
#: A picture that is sent as it is; kitty takes no longer side. Larger ones are made smaller first.
_SENT_BYTES, _SENT_SIDE = 2 * 1024 * 1024, 10_000
#: The sides of a picture that was made smaller, and of sixels: xterm shows no more.
_SMALLER_SIDE, _SIXEL_SIDE = 2000, 1000
#: The base64 characters of a piece in kitty's protocol.
_PIECE_CHARS = 4096
#: A picture is no higher than this part of the terminal.
_HEIGHT_PART = 2 / 3
#: Where the terminal does not say its size: columns and rows, and the pixels of a character, which are rather too few.
_DEFAULT_SIZE, _DEFAULT_CHARACTER = (80, 24), (8, 16)
_JPEG_ENDS = b"\xff\xd8", b"\xff\xd9"
#: Colours of a picture, and the number of a pixel that is left as it is.
_COLOURS, _TRANSPARENT = 255, 255
_HALF_OPAQUE = 128
#: Rows of pixels in a band, which is a line of sixels.
_BAND = 6
#: Longer runs of a sixel are written as a count.
_RUN_MIN = 4


class ConsoleOutput:
    """A printer of cells' outputs and results; with ``as_json`` only of results, as JSON lines on stdout.

    With ``is_silent`` nothing is printed. ``pictures`` is the protocol for pictures on the terminal of stdout.
    """

    def __init__(self, *, as_json: bool, is_silent: bool = False, pictures: PictureChoice = "never") -> None:
        self._as_json = as_json
        self.is_silent = is_silent
        self._bar = False
        self._held = ""
        self._unfinished: set[str] = set()
        self._filters = {name: TerminalFilter() for name in ("stdout", "stderr")}
        self._writer = ("", 0)
        """The stream that wrote last, and the number of other texts on the terminal until then."""
        self._pictures = TerminalPictures(pictures)

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=inner_stream(sys.stderr))

    def show_output(self, output: Output) -> None:
        """Show an output of the running cell."""
        if not self._as_json and not self.is_silent:
            aside = isinstance(output, Error) or (isinstance(output, Stream) and output.name == "stderr")
            name = "stderr" if aside else "stdout"
            if isinstance(output, Stream) and isinstance(getattr(sys, name), TerminalStream):
                self._write(name, self._filter(name, output.text))
            else:
                text = output_text((output,), is_part=True)
                text = neutralise(text) if isinstance(getattr(sys, name), TerminalStream) else text
                self._write(name, text, own_line=not isinstance(output, Stream))
                if sequence := self._pictures.draw(output):
                    self._show_picture(sequence)

    def show_result(self, result: ExecutionResult, *, has_hints: bool = True, is_exit: bool = False) -> None:
        """Show the notes of a result: a timeout, a lost state, cut output, and hints on an unexpected error.

        A cell that ended its program by an exit needs none (``is_exit``).
        """
        if self.is_silent:
            return
        if self._as_json:
            self._write("stdout", encode_json(result.to_dict()) + "\n")
            return
        self._end_text()
        self._release()
        lines = [] if is_exit else remarks(result, has_hints=has_hints)
        if omitted := self._pictures.end_cell():
            lines.append(f"{count_things('picture', omitted)} not shown here: a cell may show 64 megapixels in 16 MiB")
        for line in lines:
            self._write("stderr", format_remark(sys.stderr, line), own_line=True)

    def end_line(self) -> None:
        """End an unfinished line of the cell."""
        self._end_text()
        for target in sorted(self._unfinished):
            self._write("stderr" if target == "stderr" else "stdout", "\n")

    def note_typed_newline(self) -> None:
        """Note the end of the terminal's unfinished line by a typed newline."""
        self._unfinished.discard("terminal")
        self._writer = ("", 0)

    def _filter(self, name: str, text: str) -> str:
        """Return the harmless part of a piece of a stream; cursor moves stay within the lines of this stream."""
        writer, text_filter = (name, TerminalStream.others), self._filters[name]
        if writer != self._writer:  # a move upwards would overwrite other text
            text_filter.forget_rows()
        self._writer, text_filter.moves = writer, not self._bar
        return text_filter.feed(text)

    def _end_text(self) -> None:
        """End the text of a cell, with its colours."""
        for name, text_filter in self._filters.items():
            if text_filter.is_styled:
                write_text(getattr(sys, name), RESET, is_filtered=True)
            text_filter.flush()

    def _write(self, name: str, text: str, *, own_line: bool = False) -> None:
        """Write to stdout or stderr, or above the progress bar if both are the same terminal."""
        stream = sys.stdout if name == "stdout" else sys.stderr
        shared = sys.stderr.isatty() and stream.isatty()
        target = "terminal" if shared else name
        if not text:
            return
        if own_line and target in self._unfinished:
            text = "\n" + text
        self._unfinished.discard(target)
        if not text.endswith("\n"):
            self._unfinished.add(target)
        if shared:
            self._write_above_bar(text)
        else:
            write_text(stream, text, is_filtered=True)

    def _show_picture(self, sequence: str) -> None:
        """Write a picture on lines of its own, with later text below."""
        self._writer = ("", 0)
        if not self._bar:
            self._write("stdout", sequence + "\n", own_line=True)
            return
        from rich.segment import ControlType, Segment, Segments

        self._release()
        with write_guard(sys.stderr):
            picture = Segment(sequence, control=[(ControlType.CURSOR_FORWARD, 0)])  # text without a width
            self._console.print(Segments([picture, Segment.line()]), crop=False)

    def _write_above_bar(self, text: str) -> None:
        """Write whole lines, and hold back an unfinished line, which the bar would overwrite."""
        text = self._held + text
        end = text.rfind("\n") + 1 if self._bar else len(text)
        self._held = text[end:]
        if not self._bar:
            write_text(sys.stderr, text[:end], is_filtered=True)
            return
        with write_guard(sys.stderr):
            self._console.out(text[:end], end="", highlight=False)

    @contextmanager
    def progress(self, cells: int) -> Iterator[Callable[[], None]]:
        """Show a bar over the cells on a terminal; yield the function to call after each cell."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        is_shown = sys.stderr.isatty() and not self.is_silent
        self._bar = is_shown and not self._as_json
        with Progress(
            *columns,
            console=self._console,
            transient=True,
            disable=not is_shown,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as bar:
            task = bar.add_task("cells", total=cells)
            try:
                yield lambda: bar.advance(task)
            finally:
                self._bar = False
                with suppress(CommandFailed):  # report the first failure, not the closed output
                    self._release()

    def _release(self) -> None:
        """End the line held back for the bar, so that it is shown."""
        if self._held:
            self._write("stderr", "\n")


def remarks(result: ExecutionResult, *, has_hints: bool = True) -> list[str]:
    """Return the notes about a result beyond the outputs, without notes that every command would repeat: see `doctor`."""
    from kernelexec.provisioning.host.interpreters import OWN_CODE

    lines = [note for note in result.notes if OWN_CODE not in note]
    if result.interrupted:
        lines.append(f"ended by {result.interrupted} ({result.ended_by}); state {result.state}")
    elif result.state == "lost":
        lines.append(f"the kernel is gone ({result.cause}); state lost")
    if result.lost_names and result.state in ("restored", "lost"):
        lines.append(f"lost: {', '.join(result.lost_names)}")
    if result.truncated:
        lines.append(f"output truncated: {result.total_bytes} bytes in total")
    if has_hints and result.status == "error" and result.diagnosis and result.diagnosis.hints:
        lines.extend(f"hint: {hint}" for hint in result.diagnosis.hints)
    return list(map(escape_line, lines))


def show_table(headings: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table on a terminal, else a line of tab-separated fields per row, without headings."""
    plain = [list(map(escape_line, row)) for row in rows]
    if sys.stdout.isatty():
        write_text(sys.stdout, render_table(headings, plain))
    else:
        write_text(sys.stdout, "".join("\t".join(row) + "\n" for row in plain))


def render_table(headings: tuple[str, ...], rows: list[list[str]]) -> str:
    """Return a table, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table, console = Table(box=None, pad_edge=False), Console()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # plain text, not markup
    with write_guard(sys.stdout), console.capture() as captured:
        console.print(table)
    return captured.get()


@dataclass(frozen=True, slots=True)
class PictureArea:
    """The part of the terminal for a picture, in characters, and the size of a character in pixels."""

    columns: int
    rows: int
    character: tuple[int, int]
    is_measured: bool
    """Whether the terminal reports its size in pixels."""

    @classmethod
    def read(cls) -> PictureArea:
        """Return the area in the terminal of stdout, in the present size."""
        rows, columns, width, height = platform.read_terminal_size(sys.stdout)
        columns, rows = (columns, rows) if columns and rows else _DEFAULT_SIZE
        character = (width // columns, height // rows)
        is_measured = all(character)
        return cls(columns, max(int(rows * _HEIGHT_PART), 1), character if is_measured else _DEFAULT_CHARACTER, is_measured)

    @property
    def pixels(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.columns * self.character[0], self.rows * self.character[1]

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Return the columns and rows of a picture, made smaller to fit, and never larger."""
        scale = min(1.0, self.pixels[0] / width, self.pixels[1] / height)
        columns = math.ceil(round(width * scale / self.character[0], 6))
        return min(columns, self.columns), min(math.ceil(round(height * scale / self.character[1], 6)), self.rows)


class TerminalPictures:
    """The pictures of cells for stdout; none without a terminal that shows pictures."""

    def __init__(self, choice: PictureChoice) -> None:
        self._terminal = PictureTerminal(choice, os.environ)
        self._begin_cell()

    def draw(self, output: Output) -> str:
        """Return the sequence for an output's picture, without control characters of the kernel; empty for no picture."""
        if not self._terminal.may_have_protocol or not isinstance(output, DisplayData | ExecuteResult):
            return ""
        image = best_image(output)
        if image is None or (size := image.size) is None or (protocol := self._terminal.choose_protocol()) is None:
            return ""
        pixels = size[0] * size[1]
        is_affordable = pixels <= self._pixels and self._chars > 0
        self._pixels -= pixels if is_affordable else 0  # damaged pictures count too: they may take as long
        with warnings.catch_warnings(action="ignore"):  # the decoder's, about damaged metadata
            sequence = encode_picture(image, protocol, PictureArea.read()) if is_affordable else ""
        if sequence is None:
            return ""
        if not sequence or len(sequence) > self._chars:
            self._omitted += 1
            return ""
        self._chars -= len(sequence)
        return sequence

    def end_cell(self) -> int:
        """Return how many pictures of the cell were too large or too many; the next cell begins."""
        omitted = self._omitted
        self._begin_cell()
        return omitted

    def _begin_cell(self) -> None:
        self._pixels, self._chars, self._omitted = _CELL_PIXELS, _CELL_CHARS, 0


def encode_picture(image: Image, protocol: PictureProtocol, area: PictureArea) -> str | None:
    """Return the sequence for a picture at the cursor; None if damaged, or of more than ``DECODED_PIXELS``."""
    if (size := image.size) is None or size[0] * size[1] > DECODED_PIXELS:
        return None
    if protocol == "sixel":
        sides = [min(side, _SIXEL_SIDE) for side in area.pixels]
        decoded = decode_picture(image, *sides)
        return None if decoded is None else encode_sixels(decoded[0])
    content = image.content if _can_be_sent(image.content, size, protocol) else _make_smaller_png(image, area)
    if content is None:
        return None
    columns, rows = area.fit(*size)
    if protocol == "iterm2":
        return _encode_iterm2(content, columns, rows)
    # Without columns and rows the terminal shows the picture pixel by pixel.
    is_natural = area.is_measured and size[0] <= area.pixels[0] and size[1] <= area.pixels[1]
    return _encode_kitty(content, "" if is_natural else f",c={columns},r={rows}")


def _can_be_sent(content: bytes, size: tuple[int, int], protocol: PictureProtocol) -> bool:
    """Return whether a terminal takes a picture unchanged: of a supported kind, complete, and not too large."""
    if len(content) > _SENT_BYTES or max(size) > _SENT_SIDE:
        return False
    is_jpeg = content.startswith(_JPEG_ENDS[0]) and content.endswith(_JPEG_ENDS[1])
    return (protocol == "iterm2" and is_jpeg) or is_whole_png(content)


def _make_smaller_png(image: Image, area: PictureArea) -> bytes | None:
    """Return a picture as a PNG in the displayed size; None if damaged."""
    decoded = decode_picture(image, *(min(side, _SMALLER_SIDE) for side in area.pixels))
    if decoded is None:
        return None
    written = BytesIO()
    decoded[0].save(written, "PNG")
    return written.getvalue()


def _encode_kitty(png: bytes, placement: str) -> str:
    """Return a PNG in pieces of base64; q=2 asks for no answer, which would be taken for typed text."""
    # ESC _G a=T,f=100,q=2,c=COLUMNS,r=ROWS,m=1 ; BASE64 ESC \  then further pieces with m=1, and the last with m=0.
    text = base64.b64encode(png).decode("ascii")
    pieces = [text[begin : begin + _PIECE_CHARS] for begin in range(0, len(text), _PIECE_CHARS)]
    last = len(pieces) - 1
    keys = [f"a=T,f=100,q=2{placement},m={int(last > 0)}", *(f"m={int(number < last)},q=2" for number in range(1, last + 1))]
    return "".join(f"\x1b_G{key};{piece}\x1b\\" for key, piece in zip(keys, pieces, strict=True))


def _encode_iterm2(content: bytes, columns: int, rows: int) -> str:
    """Return a picture as a file for display inside columns and rows, with its proportions."""
    keys = f"inline=1;size={len(content)};width={columns};height={rows};preserveAspectRatio=1"
    return f"\x1b]1337;File={keys}:{base64.b64encode(content).decode('ascii')}\x07"


def encode_sixels(picture: PIL.Image.Image) -> str:
    """Return a picture in mode RGB or RGBA as a sequence for the terminal, in at most 255 colours.

    Pixels of more than half transparency are left out. The form is from DEC STD 070, chapter 9.
    """
    import PIL.Image

    indexed = picture.convert("RGB").quantize(_COLOURS, PIL.Image.Quantize.MEDIANCUT)
    if picture.mode == "RGBA":
        hidden = [255 * (alpha < _HALF_OPAQUE) for alpha in range(256)]
        indexed.paste(_TRANSPARENT, mask=picture.getchannel("A").point(hidden))
    pixels, palette, width = indexed.tobytes(), indexed.getpalette() or [], picture.width
    colours = sorted(set(pixels) - {_TRANSPARENT})
    registers = b"".join(_define_colour(colour, palette[3 * colour : 3 * colour + 3]) for colour in colours)
    rows = [pixels[begin : begin + width] for begin in range(0, len(pixels), width)]
    bands = (_encode_band(rows[top : top + _BAND]) for top in range(0, len(rows), _BAND))
    # ESC P 0;1;0 q: pixels without a colour stay as they are. "1;1;WIDTH;HEIGHT: square pixels. #N;2;RED;GREEN;BLUE: a colour.
    # Then #N SIXELS for each colour, with $ back to the left edge, and - to the next band. ESC \ ends it.
    body = b'\x1bP0;1;0q"1;1;%d;%d' % picture.size + registers + b"-".join(bands) + b"\x1b\\"
    return body.decode("ascii")


def _define_colour(colour: int, channels: Sequence[int]) -> bytes:
    """Return the definition of a colour, in percent of red, green and blue."""
    return b"#%d;2;%d;%d;%d" % (colour, *(round(channel / 2.55) for channel in channels))


def _encode_band(rows: Sequence[bytes]) -> bytes:
    """Return up to six rows of pixels, colour by colour; adjacent equal columns are encoded once."""
    lines: dict[int, list[bytes]] = {}
    ends: dict[int, int] = {}
    begin = 0
    for column, run in groupby(zip(*rows, strict=True)):
        end = begin + sum(1 for _ in run)
        for colour, sixel in _split_column(column):
            line = lines.setdefault(colour, [b"#%d" % colour])
            if (gap := begin - ends.get(colour, 0)) > 0:
                line.append(_repeat(b"?", gap))
            line.append(_repeat(sixel, end - begin))
            ends[colour] = end
        begin = end
    return b"$".join(map(b"".join, lines.values()))


@lru_cache(maxsize=4096)
def _split_column(column: tuple[int, ...]) -> tuple[tuple[int, bytes], ...]:
    """Return the colours of a column, each with a sixel: bit N of a sixel is row N, and no bit is ``?``."""
    bits: dict[int, int] = {}
    for row, colour in enumerate(column):
        bits[colour] = bits.get(colour, 0) | 1 << row
    bits.pop(_TRANSPARENT, None)
    return tuple((colour, bytes([ord("?") + value])) for colour, value in bits.items())


def _repeat(sixel: bytes, count: int) -> bytes:
    return sixel * count if count < _RUN_MIN else b"!%d%b" % (count, sixel)
