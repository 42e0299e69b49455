"""`kernelexec mcp install`: each client's settings get one entry, in its own form, and nothing else in them changes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.end_to_end.cli.test_command import LOCAL, kernelexec, refused
from tests.unit.mcp.test_install import home

__all__ = ["home"]


def test_the_command_prints_writes_and_refuses(tmp_path: Path) -> None:
    home = str(tmp_path)
    shown = kernelexec(tmp_path, "mcp", "install", "vscode", "--print", *LOCAL, HOME=home)
    assert shown.returncode == 0
    assert shown.stderr.strip().endswith(str(tmp_path / ".config/Code/User/mcp.json"))
    assert list(tmp_path.iterdir()) == []
    done = kernelexec(tmp_path, "mcp", "install", "vscode", "--", *LOCAL, HOME=home)
    assert done.returncode == 0
    path = tmp_path / ".config/Code/User/mcp.json"
    assert json.loads(path.read_text()) == json.loads(shown.stdout)
    assert kernelexec(tmp_path, "mcp", "install", "vscode", HOME=home).returncode == 1
    assert "--isolation" in refused(kernelexec(tmp_path, "mcp", "install", "cursor", "--isolatoin", "local", HOME=home))
    assert "did you mean 'cursor'" in refused(kernelexec(tmp_path, "mcp", "install", "cursr", HOME=home))
