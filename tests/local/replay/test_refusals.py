"""What is no notebook to replay is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec import Executor, InvalidRequest
from tests.local.replay.test_notebooks import written
from tests.unit.replay.test_refusals import own

__all__ = ["own"]


def test_a_session_that_is_open_takes_no_notebook(own: Executor, tmp_path: Path) -> None:
    path = written(tmp_path / "a.ipynb", "x = 1")
    own.session("again")
    with pytest.raises(InvalidRequest, match="close it first"):
        own.session("again", notebook=path)
