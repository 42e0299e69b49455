"""The recorded history of a session: the cells of a notebook or of a journal in order, with their known ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from kernelexec.cells import CommandOptions
from kernelexec.results import Interrupted, Snapshot

_BASH, _NODE = "%%bash\n", "%%script node\n"
_ACCOUNT = "account, which is taken from the journals in this workspace only"
#: The end of a cell; None if it is unknown, as in a notebook of another tool.
RecordedStatus = Literal["ok", "error", "aborted", "unfinished"] | None


@dataclass(frozen=True, slots=True)
class RecordedCell:
    """A cell of an earlier run or queue.

    ``kind`` names the call: ``code`` is ``execute``, ``command`` is ``execute_command`` (``source`` is then the command
    itself, with ``work_dir``, ``stdin`` and ``user``; ``omissions`` names other options). ``interrupted`` is the reason of an
    early end, ``ended_kernel`` whether the kernel ended too, ``seconds`` the duration, ``ename`` the final exception,
    ``may_fail`` whether the cell was meant to raise.
    """

    source: str
    kind: Literal["code", "command"] = "code"
    language: str = "python"
    work_dir: str | None = None
    stdin: str | None = None
    user: str | None = None
    omissions: str = ""
    status: RecordedStatus = None
    interrupted: Interrupted | None = None
    ended_kernel: bool = False
    seconds: float | None = None
    ename: str | None = None
    may_fail: bool = False

    def without_account(self) -> Self:
        """Return the cell for a record writable by cells, which must not choose the account of a command."""
        return self if self.user is None else replace(self, user=None, omissions=_ACCOUNT)


class CellLineage:
    """The cells behind a Python kernel's state: all cells that ran, without the undone ones.

    Each cell follows the newest cell at its beginning. Going back to a checkpoint makes the last cell before the checkpoint
    the newest again, so undone cells count again after the return to a later checkpoint.
    """

    def __init__(self) -> None:
        # A tree by its parents: a branch begins where a kernel went back. Cells are never removed, so every way back is known.
        self._before: dict[str, str] = {}
        self._newest = ""
        self._active: set[str] = set()

    def add(self, execution_id: str) -> None:
        """Add a beginning cell."""
        self._before[execution_id] = self._newest
        self._newest = execution_id
        self._active.add(execution_id)

    def go_back(self, after: str) -> set[str]:
        """Go back to the state after a cell, or before all cells for an empty id; return the cells undone or restored.

        An unknown cell changes nothing: it belongs to an earlier owner, or the checkpoint lies.
        """
        if after and after not in self._before:
            return set()
        active, execution_id = set[str](), after
        while execution_id:
            active.add(execution_id)
            execution_id = self._before[execution_id]
        changed, self._newest, self._active = active ^ self._active, after, active
        return changed

    @property
    def active(self) -> list[str]:
        """The cells of the state, in their order."""
        return [execution_id for execution_id in self._before if execution_id in self._active]

    def is_undone(self, execution_id: str) -> bool:
        """Return whether a cell was undone."""
        return execution_id in self._before and execution_id not in self._active


@dataclass(frozen=True, slots=True)
class History:
    """Cells in order, and the snapshot taken after the first ``covered`` cells, if any.

    ``replaced`` lists the last cells of replaced Python kernels, counted from 1. ``kernelspec`` is the kernelspec needed by all
    cells, unless Python's; ``notes`` lists repairs of the file.
    """

    cells: tuple[RecordedCell, ...]
    snapshot: Snapshot | None = None
    covered: int = 0
    replaced: tuple[int, ...] = ()
    kernelspec: str | None = None
    notes: tuple[str, ...] = ()

    def to_metadata(self) -> dict[str, Any]:
        """Return the snapshot and the covered cells as JSON types, for later replays."""
        if self.snapshot is None:
            return {}
        return {"snapshot": self.snapshot.to_dict(), "covered": [asdict(cell) for cell in self.cells[: self.covered]]}

    @classmethod
    def from_metadata(cls, value: Mapping[str, Any]) -> Self | None:
        """Read the return value of `to_metadata`; None for any other value."""
        from pydantic import TypeAdapter  # noqa: PLC0415 - imported where it is needed only

        try:
            cells = TypeAdapter(tuple[RecordedCell, ...]).validate_python(value["covered"])
            return cls(cells, Snapshot.from_dict(value["snapshot"]), len(cells))
        except (ValueError, LookupError, TypeError):
            return None


def restore_call(cell: RecordedCell, entry: Mapping[str, Any]) -> RecordedCell:
    """Return the call of a command of the session's shell, from its recorded cell and metadata."""
    metadata = {key: entry[key] for key in ("work_dir", "stdin") if isinstance(entry.get(key), str)}
    if (options := CommandOptions.from_record(entry.get("options"))) is not None:
        cell = replace(cell, user=options.user, omissions=options.omissions)
    if cell.source.startswith(_NODE):
        return replace(cell, source=cell.source.removeprefix(_NODE), language="javascript", **metadata)
    return replace(cell, source=cell.source.removeprefix(_BASH), kind="command", language="python", **metadata)
