"""What a person sees of a running session: text on stdout, the rest and a bar over the cells on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kernelexec.results import Error, ExecutionResult, Output, Stream, output_text


class Shower:
    """Shows outputs as they come and results as they are; with ``as_json`` only results, as JSON lines on stdout."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=True)
        self._at_line_start = True

    def output(self, output: Output) -> None:
        """Show one output of the running cell."""
        if self._as_json:
            return
        text = output_text((output,))
        if not isinstance(output, Stream) and not self._at_line_start:
            text = "\n" + text
        aside = isinstance(output, Error) or (isinstance(output, Stream) and output.name == "stderr")
        target = sys.stderr if aside else sys.stdout
        if target.isatty():
            self._console.out(text, end="", highlight=False)
        else:
            target.write(text)
            target.flush()
        self._at_line_start = text.endswith("\n") if text else self._at_line_start

    def result(self, result: ExecutionResult) -> None:
        """Say what the outputs do not: a timeout, a lost state, what was cut."""
        if self._as_json:
            sys.stdout.write(result.to_json() + "\n")
            sys.stdout.flush()
            return
        if not self._at_line_start:
            self._write("\n")
            self._at_line_start = True
        for line in remarks(result):
            self._write(f"kernelexec: {line}\n")

    def _write(self, text: str) -> None:
        self._console.out(text, end="", highlight=False) if sys.stderr.isatty() else sys.stderr.write(text)

    @contextmanager
    def progress(self, cells: int) -> Iterator[Callable[[], None]]:
        """A bar over the cells on a terminal; nothing elsewhere. Yields what to call after each cell."""
        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("cells", total=cells)
            yield lambda: bar.advance(task)


def remarks(result: ExecutionResult) -> list[str]:
    """What a person should know of a result beside its outputs."""
    found = list(result.notes)
    if result.interrupted:
        found.append(f"ended by {result.interrupted} ({result.rung}); state {result.state}")
    elif result.state == "lost":
        found.append(f"the kernel is gone ({result.cause}); state lost")
    if result.lost_names:
        found.append(f"lost: {', '.join(result.lost_names)}")
    if result.truncated:
        found.append(f"output cut: {result.total_bytes} bytes in all")
    if result.status == "error" and result.diagnosis and result.diagnosis.hints:
        found.extend(f"hint: {hint}" for hint in result.diagnosis.hints)
    return found
