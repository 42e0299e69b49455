"""Notes of a result about memory: high use, and processes killed for lack of it."""

from __future__ import annotations

from kernelexec.kernel.usage import Usage
from kernelexec.results.usage import size_text
from kernelexec.session.cells.cell_run import Verdict


def memory_limit_text(usage: Usage, isolation: str) -> str:
    """Return the memory limit of a kernel as text; empty where none is known."""
    limit = usage.limit_bytes
    owner = "the container's" if isolation == "container" else "its control group's"
    return f"{owner} memory limit of {size_text(limit)}" if limit else ""


def add_memory_notes(verdict: Verdict, usage: Usage, limit: str) -> None:
    """Add to a verdict the notes about the memory of its kernel."""
    if verdict.cause == "oom":
        verdict.limit = limit
        before = f" The biggest variables before: {usage.memory.names}." if usage.memory and usage.memory.names else ""
        verdict.notes.append(f"The kernel was killed for want of memory: {limit or 'a limit'} was reached.{before}")
        return
    if usage.killed > 0:
        subject = "One process was" if usage.killed == 1 else f"{usage.killed} processes were"
        verdict.notes.append(f"{subject} killed for want of memory: {limit or 'a limit'} was reached.")
    if usage.watermark is not None:
        over = usage.memory is not None and not usage.memory.high
        verdict.notes.append(f"While the cell ran, {usage.watermark}" if over else str(usage.watermark))
