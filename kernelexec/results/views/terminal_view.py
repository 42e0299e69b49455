"""Results in terminals, by rich: the text of the outputs, and a line with the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelexec.untrusted_text import escape_invisible

if TYPE_CHECKING:
    from rich.console import Group


def make_renderable(text: str, verdict: str, *, ok: bool) -> Group:
    """Return what rich prints for a result; markup and control characters of the cell are shown as text."""
    from rich.console import Group  # noqa: PLC0415 - imported where it is needed only
    from rich.text import Text  # noqa: PLC0415 - as above

    shown = [Text(escape_invisible(text.rstrip("\n")))] if text.strip() else []
    return Group(*shown, Text(verdict, style="dim" if ok else "red"))
