"""Outputs, results and tables for a terminal, or as plain lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kernelexec.cli.stdio import CommandFailed, write_guard, write_text
from kernelexec.cli.terminal.picture_protocol import PictureChoice
from kernelexec.cli.terminal.picture_sequences import TerminalPictures
from kernelexec.cli.terminal.text_filter import RESET, TerminalFilter, TerminalStream, format_remark, inner_stream, neutralise
from kernelexec.results import Error, ExecutionResult, Output, Stream, output_text
from kernelexec.results.one_line import count_things
from kernelexec.untrusted_text import escape_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class ConsoleOutput:
    """A printer of cells' outputs and results; with ``as_json`` only of results, as JSON lines on stdout.

    If it ``is_silent``, it prints nothing. ``pictures`` is the protocol by which the terminal of stdout shows pictures.
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
        """Show one output of the running cell."""
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

    def show_headings(self, headings: Iterable[str]) -> None:
        """Show the headings of a notebook before the cell below them, on stderr."""
        for heading in () if self._as_json or self.is_silent else headings:
            self._write("stderr", format_remark(sys.stderr, f"## {escape_line(heading)}"), own_line=True)

    def show_result(self, result: ExecutionResult, *, has_hints: bool = True, is_exit: bool = False) -> None:
        """Show the notes of a result: a timeout, a lost state, cut output, and hints on an error that was not expected.

        A cell that ends its program by an exit needs none.
        """
        if self.is_silent:
            return
        if self._as_json:
            text = result.to_json()
            try:
                text.encode(sys.stdout.encoding or "ascii")
            except UnicodeEncodeError:
                text = json.dumps(result.to_dict(), allow_nan=False)  # with escapes
            self._write("stdout", text + "\n")
            return
        self._end_text()
        self._release()
        for line in () if is_exit else remarks(result, has_hints=has_hints):
            self._write("stderr", format_remark(sys.stderr, line), own_line=True)
        if omitted := self._pictures.end_cell():
            line = f"{count_things('picture', omitted)} not shown here: a cell may show 64 megapixels in 16 MiB"
            self._write("stderr", format_remark(sys.stderr, line), own_line=True)

    def end_line(self) -> None:
        """End a line that the cell left unfinished."""
        self._end_text()
        for target in sorted(self._unfinished):
            self._write("stderr" if target == "stderr" else "stdout", "\n")

    def note_typed_newline(self) -> None:
        """Note that a typed newline ended the unfinished line of the terminal."""
        self._unfinished.discard("terminal")
        self._writer = ("", 0)

    def _filter(self, name: str, text: str) -> str:
        """Return what of a piece of a stream may go to the terminal; moves stay within the lines of this stream."""
        writer, text_filter = (name, TerminalStream.others), self._filters[name]
        if writer != self._writer:
            text_filter.forget_rows()
        self._writer, text_filter.moves = writer, not self._bar
        return text_filter.feed(text)

    def _end_text(self) -> None:
        """End the text of a cell, and the colours that it left on."""
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
        """Write a picture on lines of its own; later text stays below it."""
        self._writer = ("", 0)
        if not self._bar:
            self._write("stdout", sequence + "\n", own_line=True)
            return
        self._release()
        with write_guard(sys.stderr):
            self._console.print(_Picture(sequence), crop=False)

    def _write_above_bar(self, text: str) -> None:
        """Write whole lines, and hold back an unfinished one, which the bar would overwrite."""
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
        """End the line that is held back for the bar, which shows it."""
        if self._held:
            self._write("stderr", "\n")


@dataclass(frozen=True, slots=True)
class _Picture:
    """A picture above the bar, which rich takes for text without a width."""

    sequence: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import ControlType, Segment

        yield Segment(self.sequence, control=[(ControlType.CURSOR_FORWARD, 0)])
        yield Segment.line()


def remarks(result: ExecutionResult, *, has_hints: bool = True) -> list[str]:
    """Return the notes about a result that its outputs do not show; what each command would repeat, `doctor` reports."""
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
