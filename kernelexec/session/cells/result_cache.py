"""The result cache of a session: stored results of cells declared by their caller to only compute.

The key of a result is the environment, all earlier cells of the kernel with their environments, and the cell's own code.
After any other possible change of the kernel's variables this chain ends until the next kernel. A hit is returned without
running the cell. Results are in private files, a file for each key, with a limit of their total size.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread

from kernelexec.cells import Cell, CodeCell, ShellCell
from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, InvalidRequest
from kernelexec.kernel import Kernel
from kernelexec.launcher import protocol
from kernelexec.provisioning import Backend
from kernelexec.results import DisplayData, ExecuteResult, ExecutionResult, Output, Timing
from kernelexec.session.cells.cell_run import CellRun
from kernelexec.workspace.safe_files import replace_file

#: The version of the key format; results under other versions are ignored.
_KEY_VERSION = 6
#: The time limit for the kernel's answer about its environment.
_ANSWER_SECONDS = 10.0
#: IPython's names of earlier values and sources: a hit is not among them.
_HISTORY = re.compile(r"(?<![\w.])(?:_{1,3}|_\d+|_i+\d*|In|Out)(?!\w)")
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
#: The share of its limit that a full store keeps, so that it is not searched at each new result.
_KEPT_SHARE = 0.8
#: A result larger than the limit divided by this number is not stored.
_SIZE_DIVISOR = 8
_OTHERS_MODE = 0o077
#: The size of all results together, in bytes; the least recently used are removed first.
_LIMIT_BYTES = 256 * 1024 * 1024


class CellResultCache:
    """The chain of cells of a session's Python kernel, and the stored results of some cells. Cells run in sequence."""

    def __init__(self, store: ResultStore, settings: Mapping[str, Any]) -> None:
        self._store = store
        self._settings = settings
        self._epoch = 0
        self._chain: str | None = None
        """A hash of the kernel's cells so far; None during a cell, and after any other possible change of variables."""
        self._before: str | None = None
        """The chain before the running cell."""
        self._environment, self._may_have_new_environment = "", True
        self._foreign_events = 0
        self._key: str | None = None
        """The key of the running cell, if its result may be stored."""
        self._names_before: set[str] = set()

    @classmethod
    def open(cls, config: Config, backend: Backend, workspace: Path) -> CellResultCache | None:
        """Return the result cache of a new session, or None if nothing may be stored."""
        if config.cache is None or _explain_missing(config, backend, workspace) is not None:
            return None
        return cls(ResultStore(config.cache), _collect_settings(config, backend, workspace))

    def adopt_kernel(self, epoch: int) -> None:
        """Continue with a kernel whose earlier cells are unknown."""
        self._epoch, self._chain = epoch, None

    async def find(self, run: CellRun, epoch: int, kernel: Kernel) -> ExecutionResult | None:
        """Return the stored result of the next cell to run, or None."""
        if epoch != self._epoch:
            is_copy = kernel.checkpoint is not None  # it has the variables of earlier cells
            self._epoch, self._chain, self._foreign_events = epoch, None if is_copy else "", 0
            self._environment, self._may_have_new_environment = "", True
        self._check_other_clients(kernel)
        is_cacheable = run.uses_cache and isinstance(run.cell, CodeCell) and _HISTORY.search(run.cell.source) is None
        self._key, environment = None, ""
        if self._chain is not None and (is_cacheable or self._may_have_new_environment):
            environment = await self._request_environment(kernel)
            if environment != self._environment:
                self._chain = _hash_values(self._chain, environment)
            self._environment, self._may_have_new_environment = environment, False
        self._before, self._chain = self._chain, None  # also if the run fails
        if self._before is None or not is_cacheable or not environment:
            return None
        # the source is masked nowhere here: a session with secrets has no cache, see ``_explain_missing``
        self._key = _hash_values(_KEY_VERSION, environment, self._before, run.cell.source)
        self._names_before = set(kernel.variable_names.known)
        return await anyio.to_thread.run_sync(self._store.get, self._key)

    def record_hit(self, run: CellRun) -> None:
        """Extend the chain by a cell with a stored result."""
        # "ok" as in ``record``: only whole results of successful cells are stored
        self._chain = _extend(self._before, run.cell, "ok")

    async def record(self, run: CellRun, result: ExecutionResult, kernel: Kernel) -> None:
        """Extend the chain by a finished cell, and store its result if a later call may get it instead of a run."""
        if run.internal:
            self._may_have_new_environment = True  # by an installation
            self._chain = self._before if run.keeps_variables else None
            return
        # the point of an interrupt depends on time, so the variables after it are unknown
        has_ended_itself = result.interrupted is None and result.status in ("ok", "error")
        self._chain = _extend(self._before, run.cell, result.status) if has_ended_itself else None
        self._check_other_clients(kernel)
        changed_nothing = not result.files and result.output_ref is None and kernel.variable_names.known == self._names_before
        is_live = run.collector is None or run.collector.updates_displays or any(map(_is_live, result.outputs))
        is_whole = result.ok and result.state in ("kept", "new") and not (result.truncated or result.late)
        if self._chain is not None and self._key is not None and changed_nothing and is_whole and not is_live:
            await anyio.to_thread.run_sync(self._store.put, self._key, _strip_run_fields(result))

    def _check_other_clients(self, kernel: Kernel) -> None:
        """End the chain if another client has sent requests, since they may have run code."""
        if kernel.client.foreign_events != self._foreign_events:
            self._chain, self._foreign_events = None, kernel.client.foreign_events

    async def _request_environment(self, kernel: Kernel) -> str:
        """Return a hash of the settings and the kernel's environment; empty if the kernel does not answer."""
        reply = await kernel.client.request("control", protocol.ENVIRONMENT_REQUEST, {}, patience=_ANSWER_SECONDS)
        return "" if reply is None or reply.get("status", "ok") != "ok" else _hash_values(self._settings, reply)


def check_cacheable(run: CellRun, config: Config, backend: Backend, workspace: Path, *, has_inputs: bool) -> None:
    """Raise ``InvalidRequest`` if a cell's result cannot be stored. Inputs are not part of the key."""
    if not isinstance(run.uses_cache, bool):
        raise InvalidRequest(f"cache={run.uses_cache!r:.100} must be True or False.")
    if not isinstance(run.cell, CodeCell) or run.cell.kernel != "python":
        raise InvalidRequest("cache=True is for Python cells only.")
    if has_inputs or run.on_input is not None:
        raise InvalidRequest("cache=True cannot be combined with inputs or on_input, which are not part of a result's key.")
    if (reason := _explain_missing(config, backend, workspace)) is not None:
        raise InvalidRequest(f"cache=True: {reason}")


def _explain_missing(config: Config, backend: Backend, workspace: Path) -> str | None:
    """Return the reason for a missing result cache, or None."""
    if config.cache is None:
        return "set Config(cache=DIRECTORY), where results are stored."
    if backend.secrets is not None:
        return "a session with secrets stores no results."
    if config.container.mode == "ephemeral":
        return "ephemeral containers store no results."
    if config.cache.is_relative_to(path := workspace.resolve()) or path.is_relative_to(config.cache):
        return f"the directory of results, {config.cache}, and the workspace, where cells can write, must lie apart."
    return None


def _collect_settings(config: Config, backend: Backend, workspace: Path) -> Mapping[str, Any]:
    """Return the settings. The workspace is among them, since its files can change any output, for instance at an import."""
    container = config.container.model_dump(mode="json") if config.isolation == "container" else {}
    return {
        "workspace": str(workspace),
        "isolation": backend.isolation,
        "online": config.has_network,
        "prefix": config.programs.prefix_words,
        "variables": dict(config.environment.set),
        "output": config.output.model_dump(mode="json"),
        "container": {name: container.get(name) for name in ("image", "python")},
    }


def _extend(chain: str | None, cell: Cell, status: str) -> str | None:
    """Return the chain, extended by a cell."""
    if chain is None:
        return None
    options: tuple[object, ...] = (cell.work_dir, cell.stdin) if isinstance(cell, ShellCell) else ()
    if isinstance(cell, ShellCell) and cell.options is not None:
        options += (cell.options.process, cell.options.stdin_sha256)
    return _hash_values(chain, type(cell).__name__, cell.language, cell.source, options, status)


def _is_live(output: Output) -> bool:
    """Return whether an output belongs to its kernel: a display with updates, or a widget."""
    return isinstance(output, DisplayData | ExecuteResult) and (output.display_id is not None or _WIDGET_VIEW in output.data)


def _strip_run_fields(result: ExecutionResult) -> ExecutionResult:
    """Return a result without the fields of a single run."""
    outputs = tuple(
        replace(output, execution_count=None) if isinstance(output, ExecuteResult) else output for output in result.outputs
    )
    result = replace(result, outputs=outputs, execution_count=None, notes=(), timing=Timing(), execution_id="", session="")
    return replace(result, state="kept", cause=None, lost_names=())


def _hash_values(*values: object) -> str:
    """Return the SHA-256 of JSON values in order, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode("utf-8", "surrogatepass")).hexdigest()


class ResultStore:
    """A directory of results. A damaged file counts as missing.

    The methods block. Several processes may use a directory concurrently.
    """

    def __init__(self, directory: Path, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._size_bytes: int | None = None

    def get(self, key: str) -> ExecutionResult | None:
        """Return the result of a key, and update its time of use."""
        path = self._make_path(key)
        try:
            result = ExecutionResult.from_json(path.read_bytes())
            os.utime(path)
        except OSError:
            return None
        except ValueError:
            with suppress(OSError):
                path.unlink()
            return None
        return result

    def put(self, key: str, result: ExecutionResult) -> bool:
        """Store a result; return whether it was stored."""
        content = result.to_json().encode("utf-8", "surrogatepass")
        if len(content) > self._limit_bytes // _SIZE_DIVISOR:
            return False
        path = self._make_path(key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, content, mode=0o600)
        except OSError:
            return False
        self._enforce_limit(len(content))
        return True

    def _make_path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.json"

    def _enforce_limit(self, size: int) -> None:
        """Add a new file's size, and remove the least recently used files if the total is too large."""
        # other processes add files too: this total is an estimate, and each walk of the directory corrects it
        if self._size_bytes is not None:
            self._size_bytes += size
        if self._size_bytes is None or self._size_bytes > self._limit_bytes:
            files = sorted(self._list_files())
            self._size_bytes = sum(size for _, size, _ in files)
            allowed = self._limit_bytes * _KEPT_SHARE if self._size_bytes > self._limit_bytes else self._limit_bytes
            for _, removed, path in files:
                if self._size_bytes <= allowed:
                    break
                with suppress(OSError):  # a file that stays still counts
                    Path(path).unlink(missing_ok=True)
                    self._size_bytes -= removed

    def _list_files(self) -> Iterator[tuple[float, int, str]]:
        """Yield the time of use, the size and the path of each file, including temporary files of dead processes."""
        for directory, _, names in os.walk(self._directory):
            for name in names:
                path = os.path.join(directory, name)  # noqa: PTH118 - paths as text, for speed
                with suppress(OSError):
                    status = os.stat(path)  # noqa: PTH116 - paths as text, for speed
                    yield status.st_mtime, status.st_size, path


def check_directory(directory: Path, writable: Iterable[Path]) -> None:
    """Raise ``InvalidConfig`` if the directory overlaps a ``writable`` one, or is not private to this user."""
    cache = directory.resolve()
    for path in writable:
        target = path.expanduser().resolve()
        if cache.is_relative_to(target) or target.is_relative_to(cache):
            message = f"cache: {directory} must not overlap {path}, where cells can write: choose another one."
            raise InvalidConfig(message)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as exc:
        raise InvalidConfig(f"cache: {directory}: {exc.strerror or exc}: choose another one.") from exc
    if status.st_mode & _OTHERS_MODE or status.st_uid != os.geteuid():
        raise InvalidConfig(f"cache: {directory} must be private to this user: chmod 700, or choose another one.")
