"""The result cache of one session: results of pure cells, keyed by the chain of all cells before them.

A result is stored only for a cell that bound no name, changed no file and succeeded, and that ``cache.purity`` accepts. Its key
is the workspace, the environment, all cells of this kernel so far, and the values of the variables that the cell reads. A hit
is returned without running the cell, and the kernel does not change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio.to_thread

from kernelexec.cache import PurityChecker, ResultStore
from kernelexec.cells import CodeCell, ShellCell
from kernelexec.kernel import Kernel
from kernelexec.launcher import protocol
from kernelexec.results import ExecuteResult, ExecutionResult, Timing
from kernelexec.session.cells.cell_run import CellRun

#: The version of the key format; results under other versions are ignored.
_KEY_VERSION = 5
#: The time limit for the kernel's answer about its environment or its values.
_ANSWER_SECONDS = 10.0
#: Text that contains an address in memory or the id of the kernel's process.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b|\bipykernel_\d+\b")


class CellResultCache:
    """The chain of cells of one session's Python kernel, and the stored results of its pure cells. They run one at a time."""

    def __init__(self, store: ResultStore, settings: Mapping[str, Any]) -> None:
        self._store = store
        self._settings = settings
        self._epoch = 0
        self._chain = ""
        self._cells = 0
        self._checker = PurityChecker()
        self._key: str | None = None
        """The key of the running cell, if its result may be stored."""
        self._names_before: set[str] = set()

    def adopt_kernel(self, epoch: int) -> None:
        """Continue with a kernel whose earlier cells are unknown: nothing is cached until the next kernel."""
        self._epoch = epoch
        self._checker.is_opaque = True

    async def find(self, run: CellRun, epoch: int, kernel: Kernel) -> ExecutionResult | None:
        """Return the stored result of a cell that is about to run, or None."""
        self._key = None
        if epoch != self._epoch:
            await self._begin_chain(epoch, kernel)
        if run.internal or not isinstance(run.cell, CodeCell):
            return None
        variables = self._checker.find_variables(run.cell.source)
        values = None if variables is None else await _request_fingerprint(kernel, variables)
        if values is None:
            return None
        self._key = _hash_values(self._chain, run.cell.source, values)
        self._names_before = set(kernel.variable_names.known)
        return await anyio.to_thread.run_sync(self._store.get, self._key)

    def record_hit(self, run: CellRun) -> None:
        """Extend the chain by a cell whose stored result was returned."""
        self._extend_chain(run, "ok")

    async def record(self, run: CellRun, result: ExecutionResult, kernel: Kernel) -> None:
        """Extend the chain by a cell that ran, and store its result if the cell was pure."""
        if run.internal:
            if self._cells:
                self._checker.is_opaque = True  # the call may have changed variables or packages
            else:
                self._epoch = 0
            return
        if isinstance(run.cell, CodeCell):
            self._checker.record_cell(run.cell.source, ok=result.ok)
        self._extend_chain(run, result.status)
        is_whole = result.ok and result.state in ("kept", "new") and not (result.interrupted or result.truncated or result.late)
        is_pure = not result.files and result.output_ref is None and kernel.variable_names.known == self._names_before
        if self._key is not None and is_whole and is_pure and not _ADDRESS.search(result.text):
            await anyio.to_thread.run_sync(self._store.put, self._key, _strip_run_fields(result))

    async def _begin_chain(self, epoch: int, kernel: Kernel) -> None:
        """Begin the chain of a new kernel with the description of its environment."""
        self._epoch, self._cells, self._checker = epoch, 0, PurityChecker()
        reply = await kernel.client.request("control", protocol.ENVIRONMENT_REQUEST, {}, patience=_ANSWER_SECONDS)
        if reply is None or reply.get("status", "ok") != "ok" or kernel.checkpoint is not None:  # a copy has earlier cells
            self._checker.is_opaque = True
        self._chain = _hash_values(_KEY_VERSION, self._settings, reply)

    def _extend_chain(self, run: CellRun, status: str) -> None:
        cell = run.cell
        options: tuple[object, ...] = (cell.work_dir, cell.stdin) if isinstance(cell, ShellCell) else ()
        if isinstance(cell, ShellCell) and cell.options is not None:
            options += (cell.options.process, cell.options.stdin_sha256)
        self._chain = _hash_values(self._chain, type(cell).__name__, cell.language, cell.source, options, status)
        self._cells += 1


async def _request_fingerprint(kernel: Kernel, variables: frozenset[str]) -> str | None:
    """Return a digest of the values of variables, or None if they are not plain data."""
    if not variables:
        return ""
    content = {"names": sorted(variables)}
    reply = await kernel.client.request("control", protocol.FINGERPRINT_REQUEST, content, patience=_ANSWER_SECONDS)
    digest = (reply or {}).get("digest")
    return digest if isinstance(digest, str) else None


def _strip_run_fields(result: ExecutionResult) -> ExecutionResult:
    """Return a result without the fields that belong to one run."""
    outputs = tuple(
        replace(output, execution_count=None) if isinstance(output, ExecuteResult) else output for output in result.outputs
    )
    result = replace(result, outputs=outputs, execution_count=None, notes=(), timing=Timing(), execution_id="", session="")
    return replace(result, state="kept", cause=None, lost_names=())


def _hash_values(*values: object) -> str:
    """Return the SHA-256 of JSON values in order, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()
