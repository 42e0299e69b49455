"""The result cache of one session: results of pure cells, under the chain of all cells before them.

A result is stored only for a cell that bound no name, changed no file and succeeded, and that ``cache.purity`` knows to change
no object. Its key is the environment, all cells of this kernel so far, and the values of the variables that it reads. A hit
is returned without running the cell: the kernel stays as it is, so nothing has to be made up for later.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from kernelexec.cache import PurityChecker, Store
from kernelexec.cells import CodeCell, ShellCell
from kernelexec.config import Config
from kernelexec.kernel import Kernel
from kernelexec.launcher import protocol
from kernelexec.provisioning import Place
from kernelexec.results import ExecuteResult, ExecutionResult, Timing
from kernelexec.session.cells.cell_run import Turn

logger = logging.getLogger("kernelexec")

FROM_CACHE = "From the cache: the cell did not run, so `_` and `Out` do not have its value."
#: Results that were stored with another form of keys are not found.
_FORM = 5
#: How long the kernel may take to describe its environment or a value, in seconds.
_ANSWER_SECONDS = 10.0
#: Text that shows an address in memory, or the kernel's process.
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b|\bipykernel_\d+\b")


def cached_results(config: Config, place: Place, workspace: Path) -> CachedResults | None:
    """Return the cache of a new session, or None where nothing may be cached."""
    options = config.cache
    if not options.enabled or place.secrets is not None or config.container.mode == "ephemeral":
        return None
    if options.place.resolve().is_relative_to(workspace.resolve()):  # cells could write there
        logger.warning("kernelexec.cache_in_workspace", extra={"cache": str(options.place), "workspace": str(workspace)})
        return None
    return CachedResults(Store(options.place, options.size_bytes), _settings(config, place))


class CachedResults:
    """The chain of cells of one session's Python kernel, and the stored results of its pure cells. Cells take turns.

    Args:
        store: the results on the disk.
        settings: the options that can change the outcome of a cell.
    """

    def __init__(self, store: Store, settings: Mapping[str, Any]) -> None:
        self._store = store
        self._settings = settings
        self._epoch = 0
        self._chain = ""
        self._cells = 0
        self._checker = PurityChecker()
        self._key: str | None = None
        """The key of the cell that runs, if its result may be stored."""
        self._names: set[str] = set()

    def take_over(self, epoch: int) -> None:
        """Go on with a kernel whose earlier cells are unknown: nothing is cached until the next kernel."""
        self._epoch = epoch
        self._checker.is_opaque = True

    async def find(self, turn: Turn, epoch: int, kernel: Kernel) -> ExecutionResult | None:
        """Return the stored result of a cell that is about to run, or None."""
        self._key = None
        if epoch != self._epoch:
            await self._begin(epoch, kernel)
        if turn.own or not isinstance(turn.cell, CodeCell):
            return None
        variables = self._checker.variables_of(turn.cell.source)
        values = None if variables is None else await _fingerprint(kernel, variables)
        if values is None:
            return None
        self._key = _digest(self._chain, turn.cell.source, values)
        self._names = set(kernel.variable_names.known)
        return await anyio.to_thread.run_sync(self._store.get, self._key)

    def skip(self, turn: Turn) -> None:
        """Extend the chain by a cell that was found."""
        self._extend(turn, "ok")

    async def record(self, turn: Turn, result: ExecutionResult, kernel: Kernel) -> None:
        """Extend the chain by a cell that ran, and store its result if it may be found again."""
        if turn.own:
            if self._cells:
                self._checker.is_opaque = True  # variables or packages may be others now
            else:
                self._epoch = 0
            return
        if isinstance(turn.cell, CodeCell):
            self._checker.follow(turn.cell.source, ok=result.ok)
        self._extend(turn, result.status)
        is_whole = result.ok and result.state == "kept" and not (result.interrupted or result.truncated or result.late)
        is_pure = not result.files and result.output_ref is None and kernel.variable_names.known == self._names
        if self._key is not None and is_whole and is_pure and not _ADDRESS.search(result.text):
            await anyio.to_thread.run_sync(self._store.put, self._key, _to_store(result))

    async def _begin(self, epoch: int, kernel: Kernel) -> None:
        """Begin a chain for a new kernel with its environment."""
        self._epoch, self._cells, self._checker = epoch, 0, PurityChecker()
        reply = await kernel.client.request("control", protocol.ENVIRONMENT_REQUEST, {}, patience=_ANSWER_SECONDS)
        if reply is None or reply.get("status", "ok") != "ok":
            self._checker.is_opaque = True
        self._chain = _digest(_FORM, self._settings, reply)

    def _extend(self, turn: Turn, status: str) -> None:
        cell = turn.cell
        options = (cell.work_dir, cell.stdin) if isinstance(cell, ShellCell) else ()
        self._chain = _digest(self._chain, type(cell).__name__, cell.language, cell.source, options, status)
        self._cells += 1


async def _fingerprint(kernel: Kernel, variables: frozenset[str]) -> str | None:
    """Return a digest of the values of variables; None where they are not plain data."""
    if not variables:
        return ""
    content = {"names": sorted(variables)}
    reply = await kernel.client.request("control", protocol.FINGERPRINT_REQUEST, content, patience=_ANSWER_SECONDS)
    digest = (reply or {}).get("digest")
    return digest if isinstance(digest, str) else None


def _to_store(result: ExecutionResult) -> ExecutionResult:
    """Return a result without all that belongs to one run."""
    outputs = tuple(
        replace(output, execution_count=None) if isinstance(output, ExecuteResult) else output for output in result.outputs
    )
    return replace(result, outputs=outputs, execution_count=None, notes=(), timing=Timing(), execution_id="", session="")


def _settings(config: Config, place: Place) -> Mapping[str, Any]:
    container = config.container.model_dump(mode="json") if config.isolation == "container" else {}
    return {
        "isolation": place.isolation,
        "online": config.online,
        "prefix": config.programs.words,
        "variables": dict(config.environment.set),
        "container": {name: container.get(name) for name in ("image", "python", "environment")},
    }


def _digest(*parts: object) -> str:
    """Return the SHA-256 of JSON values in order, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()
