"""Commands of a session for frameworks that expect the exact output of a program, and its exit code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelexec.adapters.shared.calls import await_result
from kernelexec.blocking import Session
from kernelexec.results import ExecutionResult, Output, Stream, model_notes
from kernelexec.untrusted_text import escape_unseen, format_note, format_notes

#: The timeout of a call without one, in seconds.
UNLIMITED = 1e9
#: The exit code of a command that was refused and did not run.
REFUSED = 126


@dataclass(slots=True)
class ExactStreams:
    """The text of both streams as the program wrote it, with its carriage returns and escape sequences.

    What no reader sees, and what reorders text, is shown as escapes. Of each stream the first ``limit_bytes`` are kept;
    ``is_cut`` says that there was more.
    """

    limit_bytes: int
    is_cut: bool = False
    _pieces: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})
    _sizes: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    _order: list[str] = field(default_factory=list)

    def add(self, output: Output) -> None:
        """Add a piece of output; the ``on_output`` of a call."""
        if not isinstance(output, Stream) or output.name not in self._pieces:
            return
        room = self.limit_bytes - self._sizes[output.name]
        piece = output.text.encode("utf-8", "replace")
        if len(piece) > room:
            self.is_cut = True
        if room > 0:
            kept = output.text if len(piece) <= room else piece[:room].decode("utf-8", "ignore")
            self._pieces[output.name].append(kept)
            self._order.append(kept)
            self._sizes[output.name] += len(piece)

    @property
    def stdout(self) -> str:
        """The text of stdout."""
        return escape_unseen("".join(self._pieces["stdout"]))

    @property
    def stderr(self) -> str:
        """The text of stderr."""
        return escape_unseen("".join(self._pieces["stderr"]))

    @property
    def text(self) -> str:
        """The text of both streams in the order in which it arrived."""
        return escape_unseen("".join(self._order))


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of a command: its exit code, its exact streams, and the session's result."""

    exit_code: int
    streams: ExactStreams
    result: ExecutionResult

    @property
    def report(self) -> str:
        """What the caller must know besides the streams; see ``explain_end``."""
        return explain_end(self.result)


def run_command(session: Session, command: str, *, limit_bytes: int, **options: Any) -> CommandOutcome:  # noqa: ANN401 - of ``execute_command``
    """Run a command and wait for its end; ``options`` are those of ``Session.execute_command``."""
    streams = ExactStreams(limit_bytes)
    return _outcome(session.execute_command(command, on_output=streams.add, **options), streams)


async def run_command_async(
    session: Session,
    command: str,
    *,
    limit_bytes: int,
    **options: Any,  # noqa: ANN401 - of ``execute_command``
) -> CommandOutcome:
    """Run a command from any event loop; if the caller is cancelled, the command is interrupted."""
    streams = ExactStreams(limit_bytes)
    result = await await_result(
        session, lambda wait: session.execute_command(command, on_output=streams.add, wait=wait, **options)
    )
    return _outcome(result, streams)


def explain_end(result: ExecutionResult) -> str:
    """Return notes on a command that its output does not have: a refusal, a timeout, a lost or restored state; else empty."""
    if result.status == "aborted":
        return format_note(result.diagnosis.message if result.diagnosis is not None else result.text)
    has_notes = result.state in ("restored", "lost") or result.interrupted is not None
    return format_notes(model_notes(result)) if has_notes else ""


def join_report(text: str, report: str) -> str:
    """Return the output of a command with its report on a line of its own."""
    return f"{text}\n{report}" if report and text and not text.endswith("\n") else f"{text}{report}"


def _outcome(result: ExecutionResult, streams: ExactStreams) -> CommandOutcome:
    if result.status == "aborted":
        return CommandOutcome(REFUSED, streams, result)
    return CommandOutcome(1 if result.exit_code is None else result.exit_code, streams, result)
