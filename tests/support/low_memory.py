"""Places where kernels have little memory: a small container, or a small control group for those on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Hook, Session
from tests.support.pace import until

MIB = 1024 * 1024
Settings = Mapping[str, object]
TightPlace = Callable[[Settings, int, Path], AbstractContextManager[dict[str, Any]]]


@contextmanager
def small_container(settings: Settings, limit_bytes: int, _place: Path) -> Iterator[dict[str, Any]]:
    """The settings of kernels in containers of that size."""
    options: Any = settings["container"]
    yield {**settings, "container": {**options, "memory_bytes": limit_bytes}}


@contextmanager
def small_group(settings: Settings, limit_bytes: int, directory: Path) -> Iterator[dict[str, Any]]:
    """The settings of local kernels whose interpreter enters a control group of that size first."""
    if not os.access("/sys/fs/cgroup", os.W_OK):
        pytest.skip("needs a control group of its own, so root")
    base = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").exists() else Path("/sys/fs/cgroup")
    group = base / f"kernelexec-test-{os.getpid()}"
    group.mkdir()
    try:
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"):
            if (group / name).exists():
                (group / name).write_text(str(limit_bytes))
        python = directory / "python-in-group"
        python.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        yield {**settings, "python": str(python)}
    finally:
        until(lambda: _removed(group))


def _removed(group: Path) -> bool:
    """Remove a control group, unless a process that was killed is still in it."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


TIGHT: dict[str, TightPlace] = {"local": small_group, "container": small_container}


class Tight:
    """Opens sessions whose kernels have little memory, in one kind of place."""

    def __init__(self, kind: str, settings: Settings, directory: Path, closing: ExitStack) -> None:
        self._kind = kind
        self._settings = settings
        self._place = directory
        self._closing = closing

    def session(self, limit_bytes: int, hooks: Sequence[Hook] = ()) -> Session:
        """A session of that much memory, closed at the end of its test."""
        settings = self._closing.enter_context(TIGHT[self._kind](self._settings, limit_bytes, self._place))
        executor = Executor(isolation=self._kind, workspace=self._place / "workspaces", config=settings, hooks=hooks)
        return self._closing.enter_context(executor).session("tight")
