"""Executors whose cells have the time that a busy machine needs to obey an interrupt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelexec import Executor
from tests.conftest import executor_of
from tests.support.pace import slow


@pytest.fixture(scope="module")
def executor(kind: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An executor of that kind; the module may have the mode of its ``CHECKPOINTS``, and the seconds of its ``GRACE``."""
    mode, grace = getattr(request.module, "CHECKPOINTS", "auto"), slow(getattr(request.module, "GRACE", 1.0))
    location = tmp_path_factory.mktemp("workspaces")
    with executor_of(kind, location, checkpoints=mode, budgets={"grace": grace}) as opened:
        yield opened
