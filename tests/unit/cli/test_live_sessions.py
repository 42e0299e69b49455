"""The commands about open sessions, as far as they need none."""

from __future__ import annotations

import pytest

from kernelexec.cli.live_sessions import attach
from kernelexec.errors import InvalidRequest


def test_a_closed_stdin_is_reported_before_anything_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidRequest, match=r"^stdin is closed: there is no cell to run\.$"):
        attach()
