"""Answers for a model in a framework's own types: bounded text, pictures that models accept, and the complete result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from kernelexec.adapters.shared.blocks import remove_notebooks
from kernelexec.adapters.shared.pictures import fit_picture, is_fit
from kernelexec.results import ExecutionResult, Image, model_notes
from kernelexec.text import cut_middle
from kernelexec.untrusted_text import format_note, format_notes, quote_output

#: The default limit of text in an answer, in bytes; ``read_output`` reads the rest.
TEXT_BYTES = 20_000
#: The number of pictures in an answer.
PICTURES_MAX = 4


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a tool: text, at most four pictures, and the result of the cell or command, if the tool ran one."""

    text: str
    pictures: tuple[Image, ...] = ()
    result: ExecutionResult | None = None


def make_answer(result: ExecutionResult, text_bytes: int = TEXT_BYTES) -> ToolAnswer:
    """Return the answer for a result: its outcome in one line, its output of at most ``text_bytes``, notes and pictures."""
    head = f"{result.status}, exit code {result.exit_code}, state {result.state}, id {result.execution_id}"
    text = cut_middle(result.text.rstrip("\n"), text_bytes, quote_output)
    pictures = tuple(select_pictures(result.images))
    missing = len(result.images) - len(pictures)
    notes = [f"{missing} of {len(result.images)} pictures are not shown here."] if missing else []
    parts = (format_note(head), text, format_notes([*notes, *model_notes(remove_notebooks(result))]))
    return ToolAnswer("\n".join(part for part in parts if part), pictures, result)


def select_pictures(images: tuple[Image, ...], limit: int = PICTURES_MAX) -> list[Image]:
    """Return the first pictures in the form that models accept, without damaged ones; ``limit`` at most."""
    pictures = (image if is_fit(image) else fit_picture(image)[0] for image in images[: 2 * limit])
    return list(islice((picture for picture in pictures if picture is not None), limit))
