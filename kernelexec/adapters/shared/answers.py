"""Answers for a model in a framework's own types: bounded text, pictures that models accept, and the complete result."""

from __future__ import annotations

from dataclasses import dataclass

from kernelexec.adapters.shared.blocks import remove_notebooks
from kernelexec.results import ExecutionResult, Image, make_model_answer
from kernelexec.text import utf8_size

#: The default limit of text in an answer, in bytes; ``read_output`` reads the rest.
TEXT_BYTES = 20_000


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The answer of a tool: text, at most four pictures, and the result of the cell or command, if the tool ran one."""

    text: str
    pictures: tuple[Image, ...] = ()
    result: ExecutionResult | None = None


def make_answer(result: ExecutionResult, text_bytes: int = TEXT_BYTES) -> ToolAnswer:
    """Return the answer for a result, with the id by which a model reads output that is longer than ``text_bytes``."""
    is_cut = result.truncated or utf8_size(result.text) > text_bytes
    notes = [f"read_output(execution_id={result.execution_id!r}) has all of its output"] if is_cut else []
    answer = make_model_answer(remove_notebooks(result), text_bytes, notes)
    return ToolAnswer(answer.text, answer.pictures, result)
