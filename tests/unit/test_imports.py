"""Import without collections of garbage."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from kernelexec.imports import import_without_collection


@pytest.fixture
def freezes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the calls of the collector's freeze, which would exempt the objects of other tests."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(1))
    return calls


def test_the_collector_is_off_during_the_import_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freezes: list[int]
) -> None:
    (tmp_path / "module_of_a_test.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_without_collection("module_of_a_test")
    module = sys.modules.pop("module_of_a_test")
    assert (module.COLLECTS, gc.isenabled(), len(freezes)) == (False, True, 1)


def test_imported_modules_change_nothing(freezes: list[int]) -> None:
    import_without_collection("gc", "sys")
    assert freezes == []


def test_the_collector_is_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freezes: list[int]) -> None:
    (tmp_path / "failing_module_of_a_test.py").write_text("raise OSError('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OSError, match="no"):
        import_without_collection("failing_module_of_a_test")
    assert (gc.isenabled(), freezes) == (True, [])
