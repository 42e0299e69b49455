"""Answers for a model: output, pictures, links to files and notes of a cell, with a record for programs."""

from __future__ import annotations

from kernelexec.mcp.answers.cell_answers import (
    ANSWER_BYTES,
    PREVIEW_CHARS,
    TIMEOUT_ADVICE,
    count_json_bytes,
    fit_answer,
    preview,
    render_answer,
    render_stream,
)
from kernelexec.mcp.answers.options import AnswerOptions, wants_whole_record
from kernelexec.mcp.answers.pictures import InlinePictures, select_pictures

__all__ = [
    "ANSWER_BYTES",
    "PREVIEW_CHARS",
    "TIMEOUT_ADVICE",
    "AnswerOptions",
    "InlinePictures",
    "count_json_bytes",
    "fit_answer",
    "preview",
    "render_answer",
    "render_stream",
    "select_pictures",
    "wants_whole_record",
]
