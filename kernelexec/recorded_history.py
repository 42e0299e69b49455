"""What a session did before: the cells of a notebook or of a journal in order, with what is known of their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from kernelexec.results import Interrupted, Snapshot

_BASH, _NODE = "%%bash\n", "%%script node\n"
#: How the cell ended; None where nobody knows, as in a notebook of another tool.
PastStatus = Literal["ok", "error", "aborted", "unfinished"] | None


@dataclass(frozen=True, slots=True)
class PastCell:
    """One cell that was run before, or was to be.

    ``kind`` says by which call: ``code`` by ``execute``, ``command`` by ``execute_command`` (``source`` is then the command
    itself, ``work_dir`` and ``stdin`` go with it). ``interrupted`` is what ended it early, ``ended_kernel`` whether its
    kernel ended with it, ``seconds`` how long it ran, ``ename`` the exception that ended it, ``may_fail`` whether it was
    meant to raise.
    """

    source: str
    kind: Literal["code", "command"] = "code"
    language: str = "python"
    work_dir: str | None = None
    stdin: str | None = None
    status: PastStatus = None
    interrupted: Interrupted | None = None
    ended_kernel: bool = False
    seconds: float | None = None
    ename: str | None = None
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """Cells in order, and the snapshot that was taken after the first ``covered`` of them, if there is one.

    ``replaced`` says after which cells, counted from 1, a new Python kernel had taken the place of the one before.
    """

    cells: tuple[PastCell, ...]
    snapshot: Snapshot | None = None
    covered: int = 0
    replaced: tuple[int, ...] = ()

    def carried(self) -> dict[str, Any]:
        """What another replay needs of this past though it was not repeated: the snapshot and its cells, as JSON types."""
        if self.snapshot is None:
            return {}
        return {"snapshot": self.snapshot.to_dict(), "covered": [asdict(cell) for cell in self.cells[: self.covered]]}

    @classmethod
    def of_carried(cls, said: Mapping[str, Any]) -> Self | None:
        """Read what ``carried`` gave; None of anything else."""
        from pydantic import TypeAdapter  # noqa: PLC0415 - imported where it is needed only

        try:
            cells = TypeAdapter(tuple[PastCell, ...]).validate_python(said["covered"])
            return cls(cells, Snapshot.from_dict(said["snapshot"]), len(cells))
        except (ValueError, LookupError, TypeError):
            return None


def called(cell: PastCell, noted: Mapping[str, Any]) -> PastCell:
    """The call that a command of the session's shell came by, from the cell that is recorded of it and what is noted beside."""
    given = {key: noted[key] for key in ("work_dir", "stdin") if isinstance(noted.get(key), str)}
    if cell.source.startswith(_NODE):
        return replace(cell, source=cell.source.removeprefix(_NODE), language="javascript", **given)
    return replace(cell, source=cell.source.removeprefix(_BASH), kind="command", language="python", **given)
