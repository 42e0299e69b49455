"""What became of one cell: outputs in order, and one honest verdict about time, failure and state."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from kernelexec.errors import KernelexecError
from kernelexec.results.outputs import Error, Image, Output, image_of, output_text, stream_text

#: ``unknown``: it was sent to a kernel, and nobody can know what became of it.
Status = Literal["ok", "error", "aborted", "running", "unknown"]
State = Literal["kept", "lost", "unknown"]
Interrupted = Literal["timeout", "request"]
Cause = Literal["timeout", "request", "oom", "killed", "crashed", "exited", "culled"]
#: The steps of the ladder that ends a cell, gentlest first.
Rung = Literal["interrupt", "signal", "cancel", "command", "kill"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went, in seconds; sizes in bytes. None where it could not be had.

    ``queue`` waiting for the turn, ``start`` starting a kernel, ``run`` from submission to the cell's end (or the end of
    the ladder), ``collect`` from there to the finished result, ``wall`` all of it.
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
    """A line of a cell that a failure came by: the cell's execution count, the line's number and text, its function."""

    cell: int
    line: int
    text: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A failure in plain terms: what kind, where in the user's own cell, why, and what to try.

    ``retryable`` says that the same may succeed as it is. ``package`` is the one to install where a module is missing, by
    its name in the package index. ``calls`` are the lines of cells that it came by, outermost first, those of earlier cells,
    whose functions were called, included; of more than 50 the first and the last 25.
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
class ExecutionResult:
    """The outcome of one cell, the same whatever asked for it.

    ``exit_code`` is the command's own for a shell cell, 0 or 1 for code, 124 after a timeout, 128 + n after a death by
    signal n, and -1 where the cell never ran. ``state`` says whether the variables are still there, as checked with the
    kernel; ``kernel_epoch`` grows with every new kernel process. ``outputs`` hold what came in time, ``late`` what came
    from threads or children after the cell had ended. ``language`` is the cell's: each has a kernel with epochs of its own,
    but for commands and node, which run in the place of the Python kernel. ``confinement`` names what holds a kernel on this
    machine: ``landlock``, ``no-new-privileges``, ``capabilities`` where it is root, ``no-network``; a container's is its own.
    ``cached`` says that it is the stored result of an earlier run of the same cells, and that the cell did not run here.
    """

    execution_id: str
    session: str
    status: Status
    execution_count: int | None = None
    outputs: tuple[Output, ...] = ()
    late: tuple[Output, ...] = ()
    exit_code: int | None = None
    interrupted: Interrupted | None = None
    rung: Rung | None = None
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

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end without a failure."""
        return self.status == "ok"

    @property
    def stdout(self) -> str:
        """All of stdout that was kept, exactly concatenated, without ANSI codes."""
        return stream_text(self.outputs, "stdout")

    @property
    def stderr(self) -> str:
        """All of stderr that was kept, exactly concatenated, without ANSI codes."""
        return stream_text(self.outputs, "stderr")

    @property
    def text(self) -> str:
        """Streams, plain representations and tracebacks in order: what a reader of the cell would see as text."""
        return output_text(self.outputs)

    @property
    def images(self) -> tuple[Image, ...]:
        """The pictures among the outputs, decoded; one per output, the richest raster first."""
        return tuple(image for output in self.outputs if (image := image_of(output)) is not None)

    @property
    def error(self) -> Error | None:
        """The last exception among the outputs."""
        return next((output for output in reversed(self.outputs) if isinstance(output, Error)), None)

    def raise_for_error(self) -> ExecutionResult:
        """Return this result if the cell ran to its end without failure.

        Raises:
            SecurityError: it was refused, and the message says by which rule.
            ExecutionFailed: the status is ``error``, ``aborted`` or ``unknown``.
        """
        if self.status in ("ok", "running"):
            return self
        if self.status == "aborted" and self.diagnosis is not None and self.diagnosis.kind == "refused":
            raise SecurityError(self.diagnosis.message, self)
        what = f"{self.error.ename}: {self.error.evalue}" if self.error else f"exit code {self.exit_code}"
        if self.status == "unknown":
            what = "nobody can know what became of it"
        message = f"cell {self.execution_id} {self.status}: {what} (state {self.state})"
        raise ExecutionFailed(message, self)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types only."""
        plain: dict[str, Any] = plain_json(self)
        return plain

    def to_json(self) -> str:
        """The result as JSON text; ``from_json`` gives back an equal result."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ExecutionResult:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: the text is not JSON or not of the published schema.
        """
        result: ExecutionResult = _adapter().validate_json(text)
        return result

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON Schema of a result."""
        schema: dict[str, Any] = _adapter().json_schema()
        return schema


class ExecutionFailed(KernelexecError):
    """A cell failed and the caller chose to be told by an exception. ``result`` holds everything."""

    may_have_run = True

    def __init__(self, message: str, result: ExecutionResult) -> None:
        super().__init__(message)
        self.result = result


class SecurityError(ExecutionFailed):
    """A cell was refused, by a rule, a validator or an approver; nothing of it ran."""

    may_have_run = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What is new of an execution since ``cursor``: its outputs from there on, and the result once there is one.

    ``missed_bytes`` counts output that was made since the cursor but is no longer held in memory: ``read_output`` has it.
    """

    execution_id: str
    status: Status
    outputs: tuple[Output, ...]
    cursor: int
    missed_bytes: int = 0
    place: int = 0
    result: ExecutionResult | None = None

    @property
    def text(self) -> str:
        """The new outputs as text."""
        return output_text(self.outputs)


@dataclass(frozen=True, slots=True)
class OutputPage:
    """A piece of a cell's stream output, as ``read_output`` gives it; offsets and sizes in bytes of UTF-8."""

    text: str
    offset: int
    next_offset: int | None
    total_bytes: int
    stored_bytes: int


@functools.cache
def _adapter() -> Any:  # noqa: ANN401 - pydantic is imported where it is needed only
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(ExecutionResult)


def plain_json(value: Any) -> Any:  # noqa: ANN401 - a tree of dataclasses in, JSON out
    """A value of this package as JSON types only."""
    match value:
        case str() | bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: plain_json(item) for key, item in value.items()}
        case tuple() | list():
            return [plain_json(item) for item in value]
        case _:
            return {f.name: plain_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
