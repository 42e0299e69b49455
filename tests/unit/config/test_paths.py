"""Settings that are paths: impossible ones are refused, and the error names the directory that they are relative to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec.config import load
from kernelexec.errors import InvalidConfig


@pytest.mark.parametrize("workspace", [5, b"w", ["w"], "", "a\0", 0, False])
def test_a_workspace_that_is_no_path_is_refused(workspace: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"^Configuration: workspace: "):
        load("local", workspace=workspace)


def test_an_interpreter_is_a_name_or_a_path_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    value = {"python3": "python3", "/a/../b": "/a/../b", "venv/bin/python": f"{tmp_path}/venv/bin/python", "~/p": "/home/me/p"}
    assert {name: load("local", config={"python": name}).python for name in value} == value


def test_an_interpreter_relative_to_a_directory_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidConfig, match="python: must not be relative to a directory that no longer exists"):
        load("local", config={"python": "./python"})
