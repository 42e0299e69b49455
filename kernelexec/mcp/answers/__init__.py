"""Answers for a model: output, pictures, links to files and notes of a cell, with a record for programs."""

from __future__ import annotations

from kernelexec.mcp.answers.cell_answers import (
    PREVIEW_CHARS,
    TIMEOUT_ADVICE,
    count_json_bytes,
    fit_answer,
    preview,
    render_answer,
    render_stream,
)
from kernelexec.mcp.answers.options import AnswerOptions, wants_whole_record

__all__ = [
    "PREVIEW_CHARS",
    "TIMEOUT_ADVICE",
    "AnswerOptions",
    "count_json_bytes",
    "fit_answer",
    "preview",
    "render_answer",
    "render_stream",
    "wants_whole_record",
]
