"""The recipes of images, and all about building them that needs no engine."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.unit.docker.test_recipes import SCRIPTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_are_plain_shell(path: Path) -> None:
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0


def test_the_wheel_of_this_package_holds_all_recipes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    program = "from kernelexec.docker.images.recipes import recipe; print([*recipe('agent').files.values()])"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "installed", check=True, capture_output=True, text=True
    )
    paths = re.findall(r"PosixPath\('(.+?)'\)", answer.stdout)
    assert paths
    assert all(Path(path).is_relative_to(tmp_path / "installed/kernelexec/images") and Path(path).is_file() for path in paths)
