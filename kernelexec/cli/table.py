"""Tables for people, and the same rows as plain lines for programs."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelexec.cli.surroundings import write_any, writing


def show_table(headings: tuple[str, ...], rows: list[list[str]]) -> None:
    """A table on a terminal; elsewhere a line of tab-separated fields for each row, without headings."""
    plain = [["".join(char if char.isprintable() else "?" for char in field) for field in row] for row in rows]
    if not sys.stdout.isatty():
        write_any(sys.stdout, "".join("\t".join(row) + "\n" for row in plain))
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in plain:
        table.add_row(*map(Text, row))  # as it is: what a cell holds is no markup
    console = Console()
    with writing(sys.stdout), console.capture() as captured:
        console.print(table)
    write_any(sys.stdout, captured.get())
