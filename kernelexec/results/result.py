"""The result of a cell: outputs in order, and a verdict about time, failure and state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kernelexec.errors import InvalidRequest, KernelexecError
from kernelexec.imports import RESULT, explain_attribute
from kernelexec.results.json_values import JsonReadable, json_adapter, read_literal
from kernelexec.results.media import Audio, Image, describe_images
from kernelexec.results.one_line import count_things, format_seconds, join_parts, list_some, quote_line
from kernelexec.results.outputs import (
    DisplayData,
    Error,
    ExecuteResult,
    MimeBundle,
    Output,
    best_image,
    decode_base64,
    last_error,
    output_text,
    quote_outputs,
    read_audio,
    stream_text,
)

if TYPE_CHECKING:
    from kernelexec.results import ModelAnswer

#: ``unknown``: the cell was sent to a kernel, and the outcome cannot be found out.
Status = Literal["ok", "error", "aborted", "running", "unknown"]
#: ``new``: the first result of a new kernel; an earlier kernel, with which a caller may confuse it, is gone with its variables.
State = Literal["kept", "new", "restored", "lost", "unknown"]
Interrupted = Literal["timeout", "request"]
Cause = Literal["timeout", "request", "oom", "killed", "crashed", "exited", "culled", "closed"]
#: The steps to end a cell, gentlest first.
InterruptStep = Literal["interrupt", "signal", "cancel", "command", "kill"]
_INTERRUPTIONS: dict[Interrupted | None, str] = {None: "", "timeout": "timeout", "request": "interrupted"}


@dataclass(frozen=True, slots=True)
class Timing:
    """The duration of each phase in seconds; sizes in bytes. None means unavailable.

    ``queue``: waiting in the queue; ``start``: starting a kernel; ``run``: from sending the cell to its end, or to the end
    of the escalation; ``collect``: from there to the finished result; ``wall``: all of it.
    """

    queue: float = 0.0
    start: float = 0.0
    run: float = 0.0
    collect: float = 0.0
    wall: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CellLine:
    """A line of a cell in a traceback: the cell's execution count, the line's number and text, and the function."""

    cell: int
    line: int
    text: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The diagnosis of a failure: kind, line of the user's own cell, cause, and hints.

    ``retryable`` means that the same cell may succeed unchanged. For a missing module, ``package`` is the name of the
    distribution in the package index. ``calls`` are the lines of cells in the traceback, outermost first, including lines of
    functions from earlier cells; of more than 50 lines the first and the last 25.
    """

    kind: str
    message: str
    line: int | None = None
    line_text: str | None = None
    cause: str | None = None
    hints: tuple[str, ...] = ()
    retryable: bool = False
    package: str | None = None
    calls: tuple[CellLine, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionResult(JsonReadable):
    """The result of a cell, the same for every way to run a cell.

    ``exit_code`` is the command's own for a shell cell, 0 or 1 for code, 124 after a timeout, 128 + n after a death by
    signal n, and -1 if the cell never ran. ``ended_by`` is the step of the escalation that ended an interrupted cell.

    ``state`` says whether the variables are kept, as checked with the kernel. ``lost_names`` are the lost variables, or an
    earlier lost variable that the cell did not find. ``kernel_epoch`` grows with every new kernel process. ``outputs`` arrived
    before the cell's end, ``late`` outputs afterwards, from threads or child processes.

    ``language`` is the language of the cell. Each language has a kernel with its own epochs, except that commands and node run
    in the Python kernel. ``confinement`` names the layers around a kernel on this machine: ``landlock``,
    ``no-new-privileges``, ``capabilities`` for root, ``no-network``; a container has its own. ``cached`` means that the stored
    result of an earlier run of the same cells was returned, and the cell did not run.

    ``literal`` is True if the text of the last expression's value is a Python literal of the value, or is such a literal
    itself. The property ``value`` reads the literal. ``exit_status`` is the status with which code of a cell exited, by
    ``sys.exit``, ``exit`` or ``os._exit``; the rest of the cell did not run.
    """

    execution_id: str
    session: str
    status: Status
    execution_count: int | None = None
    outputs: tuple[Output, ...] = ()
    late: tuple[Output, ...] = ()
    exit_code: int | None = None
    interrupted: Interrupted | None = None
    ended_by: InterruptStep | None = None
    state: State = "unknown"
    kernel_epoch: int = 0
    cause: Cause | None = None
    lost_names: tuple[str, ...] = ()
    timing: Timing = field(default_factory=Timing)
    truncated: bool = False
    total_bytes: int = 0
    output_ref: str | None = None
    files: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    isolation: str = "local"
    confinement: tuple[str, ...] = ()
    work_dir: str | None = None
    notes: tuple[str, ...] = ()
    language: str = "python"
    cached: bool = False
    literal: bool | str = False
    exit_status: int | None = None
    verdict: str | None = field(init=False, repr=False, compare=False, default=None)
    """Facts beside the outputs in one line: a running cell, a timeout, a refusal, lost state, cut output; None without any.

    For example ``[kernelexec: error · timeout · state lost (timeout) · lost: df, model]``. A field, not a property, for web
    frameworks, which convert a dataclass by its fields.
    """

    def __post_init__(self) -> None:
        """Compute the verdict."""
        object.__setattr__(self, "verdict", self._make_verdict())

    if not TYPE_CHECKING:  # type checkers would accept any name
        __getattr__ = explain_attribute(RESULT)

    def __bool__(self) -> bool:
        """Return ``ok``."""
        return self.ok

    def __str__(self) -> str:
        """Return ``text``, followed by the ``verdict`` on a separate line if there is a verdict."""
        if self.verdict is None:
            return self.text
        return f"{self.text}{'' if self.text.endswith(chr(10)) or not self.text else chr(10)}{self.verdict}"

    def __repr__(self) -> str:
        return f"<{self.summary}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> MimeBundle:  # noqa: ARG002 - IPython's
        from kernelexec.results.views import make_bundle  # noqa: PLC0415 - only those who show it need it

        return make_bundle(self.outputs, self.verdict)

    def __rich__(self) -> Any:  # noqa: ANN401 - as above
        from kernelexec.results.views import make_renderable  # noqa: PLC0415 - as above

        return make_renderable(self.text, self.summary, ok=self.ok)

    @property
    def summary(self) -> str:
        """The result in one line: ``ok [3] 0.02 s · '42' · 1 image image/png 640x480 9 kB · state kept``."""
        count = "" if self.execution_count is None else f" [{self.execution_count}]"
        return join_parts(
            f"{self.status}{count} {format_seconds(self.timing.wall)}",
            _INTERRUPTIONS[self.interrupted],
            quote_line(self._failure_text),
            quote_outputs(self.outputs),
            describe_images(self.images),
            count_things("file", len(self.files)) if self.files else None,
            "truncated" if self.truncated else None,
            "cached" if self.cached else None,
            self._state_text,
        )

    def _make_verdict(self) -> str | None:
        failure = "" if self.error or self.interrupted or self.cause else self._failure_text
        is_plain = self.status in ("ok", "error") and self.state == "kept" and not (self.interrupted or failure)
        if is_plain and not (self.lost_names and self.status == "error") and not self.truncated:
            return None
        parts = join_parts(
            self.status,
            _INTERRUPTIONS[self.interrupted],
            quote_line(failure),
            f"execution_id {self.execution_id}" if self.status == "running" else self._state_text,
            self._lost_text,
            "output truncated" if self.truncated else None,
        )
        return f"[kernelexec: {parts}]"

    @property
    def _state_text(self) -> str:
        cause = f" ({self.cause})" if self.state in ("new", "restored", "lost") and self.cause else ""
        return f"state {self.state}{cause}"

    @property
    def _lost_text(self) -> str | None:
        heading = "lost" if self.state in ("lost", "restored") else "lost before"
        return list_some(heading, self.lost_names) if self.lost_names else None

    @property
    def _failure_text(self) -> str:
        if self.error is not None:
            return f"{self.error.ename}: {self.error.evalue}".removesuffix(": ")
        if not self.ok and self.diagnosis is not None:
            return self.diagnosis.message
        if self.status in ("aborted", "unknown") and self.notes:
            return self.notes[0]
        if self.exit_code:
            return f"exit code {self.exit_code}"
        return "" if self.exit_status is None else f"exited with {self.exit_status}"

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end without a failure."""
        return self.status == "ok"

    @property
    def stdout(self) -> str:
        """The kept text of stdout, without ANSI codes."""
        return stream_text(self.outputs, "stdout")

    @property
    def stderr(self) -> str:
        """The kept text of stderr, without ANSI codes."""
        return stream_text(self.outputs, "stderr")

    @property
    def text(self) -> str:
        """The outputs as text: streams unchanged, plain representations and tracebacks on separate lines, in order.

        The text ends in a newline only if the last output does: the text of ``1 + 1`` is ``2``.
        """
        return output_text(self.outputs)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images among the outputs, decoded; at most one per output, raster formats preferred."""
        return tuple(image for output in self.outputs if (image := best_image(output)) is not None)

    @property
    def audio(self) -> tuple[Audio, ...]:
        """The sounds among the outputs, decoded; at most one per output."""
        return tuple(sound for output in self.outputs if (sound := read_audio(output)) is not None)

    @property
    def value(self) -> Any:  # noqa: ANN401 - any value of built-in classes
        """The value of the last expression: small values of Python's own classes, numpy's or pandas'; None without a value.

        Arrays and tables of more than 48 KiB have no value here, nor tables where the kernel has not imported pyarrow.

        Raises:
            ExecutionFailed: the cell failed.
            InvalidRequest: the value is of another class, or its text was cut; ``session.get("_")`` has more classes.
        """
        self.raise_for_error()
        shown = next((output for output in reversed(self.outputs) if isinstance(output, ExecuteResult)), None)
        if shown is None:
            return None
        text = shown.data.get("text/plain") if self.literal is True else self.literal
        reason = "it has no literal form, or its text was cut"
        try:
            if isinstance(text, str):
                return read_literal(text)
        except ValueError as exc:  # it is cut, or a secret in it is masked
            reason = str(exc) or reason
        raise InvalidRequest(f"The cell's value cannot be read ({reason}): session.get('_') returns the newest value.")

    @property
    def html(self) -> str | None:
        """The HTML of the last output with HTML. Kernels are not trusted: show this in a separate frame."""
        return self._find_text("text/html")

    @property
    def markdown(self) -> str | None:
        """The Markdown of the last output with Markdown."""
        return self._find_text("text/markdown")

    @property
    def latex(self) -> str | None:
        """The LaTeX of the last output with LaTeX."""
        return self._find_text("text/latex")

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON value
        """The JSON of the last output with JSON, as a Python value."""
        return self._find("application/json")

    @property
    def png(self) -> bytes | None:
        """The PNG of the last output with a PNG; ``images`` has all images of all formats."""
        content = self._find_text("image/png")
        return None if content is None else decode_base64(content)

    def _find(self, mime: str) -> Any:  # noqa: ANN401 - JSON, or text
        displays = (output.data for output in reversed(self.outputs) if isinstance(output, DisplayData | ExecuteResult))
        return next((data[mime] for data in displays if mime in data), None)

    def _find_text(self, mime: str) -> str | None:
        content = self._find(mime)
        return content if isinstance(content, str) else None

    @property
    def error(self) -> Error | None:
        """The last exception among the outputs."""
        return last_error(self.outputs)

    def raise_for_error(self) -> ExecutionResult:
        """Return this result if the cell ran to its end without failure.

        Raises:
            SecurityError: the cell was refused; the message names the rule.
            ExecutionFailed: the status is ``error``, ``aborted`` or ``unknown``.
        """
        if self.status in ("ok", "running"):
            return self
        if self.status == "aborted" and self.diagnosis is not None and self.diagnosis.kind == "refused":
            raise SecurityError(self.diagnosis.message, self)
        outcome = self._failure_text if self.error or self.status == "aborted" else f"exit code {self.exit_code}"
        if self.status == "unknown":
            outcome = "its outcome cannot be known"
        outcome = ": ".join(filter(None, (_INTERRUPTIONS[self.interrupted], outcome)))
        message = f"cell {self.execution_id} {self.status}: {outcome} ({join_parts(self._state_text, self._lost_text)})"
        if self.diagnosis is not None:
            message = " ".join(filter(None, (f"{message}.", self.diagnosis.cause, *self.diagnosis.hints[:1])))
        raise ExecutionFailed(message, self)

    def for_model(self, limit: int = 20_000) -> ModelAnswer:
        """Return the answer for a model: end of the cell, notes, output of at most ``limit`` bytes, up to four pictures.

        Raises:
            InvalidRequest: ``limit`` is not a whole number of bytes of at least 4.
        """
        from kernelexec.results import make_model_answer  # noqa: PLC0415 - it uses results

        return make_model_answer(self, limit)

    def to_json(self) -> str:
        """Return the result as JSON text; ``from_json`` returns an equal result."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExecutionResult:
        """Read the text of ``to_json``; raise ``ValueError`` for a text that is not JSON of the published schema."""
        result: ExecutionResult = json_adapter(ExecutionResult).validate_json(text)
        return result

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON Schema of a result."""
        schema: dict[str, Any] = json_adapter(ExecutionResult).json_schema()
        schema["properties"]["verdict"] = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
        return schema


class ExecutionFailed(KernelexecError):
    """A failed cell, raised by ``raise_for_error`` only. ``result`` is the complete result."""

    may_have_run = True

    def __init__(self, message: str, result: ExecutionResult) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[type[ExecutionFailed], tuple[str, ExecutionResult]]:
        """Return the arguments for pickle and copy, so that process pools can raise the exception in the parent."""
        return type(self), (str(self), self.result)


class SecurityError(ExecutionFailed):
    """A cell refused by a rule, a validator or an approver; nothing ran."""

    may_have_run = False


@dataclass(frozen=True, slots=True)
class Progress(JsonReadable):
    """The progress of an execution since a cursor: the new outputs, and after the end the result.

    ``missed_bytes`` counts new output no longer in memory, which ``read_output`` returns. ``queue_position`` counts the cells
    ahead in the queue. ``remark`` is the reason why a running cell waits, such as a cell of another client of the kernel.
    """

    execution_id: str
    status: Status
    outputs: tuple[Output, ...]
    cursor: int
    missed_bytes: int = 0
    queue_position: int = 0
    result: ExecutionResult | None = None
    remark: str = ""

    @property
    def text(self) -> str:
        """The new outputs as text; until the end of the cell, the text of the next call continues this text."""
        return output_text(self.outputs, is_part=self.status == "running")

    def __repr__(self) -> str:
        ended = None if self.result is None else self.result.summary
        waiting = f"behind {count_things('cell', self.queue_position)}" if self.queue_position else None
        so_far = join_parts(self.status, waiting, quote_outputs(self.outputs))
        return f"<Progress {join_parts(self.execution_id, ended or so_far)}>"


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A piece of a cell's stream output from ``read_output``; offsets and sizes in bytes of UTF-8."""

    text: str
    offset: int
    next_offset: int | None
    total_bytes: int
    stored_bytes: int

    def __repr__(self) -> str:
        end = self.offset + len(self.text.encode("utf-8", "replace"))
        return f"<OutputPage bytes {self.offset} to {end} of {self.total_bytes}>"
