"""Google's ADK on sessions: in an environment of its own, as it does not fit into that of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import IMAGE, needs_engine
from tests.support.framework_suites import install_beside
from tests.support.paths import ROOT

pytestmark = pytest.mark.nightly

PROGRAM = "tests.end_to_end.frameworks.suites.google_adk_program"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_beside(
        tmp_path_factory.mktemp("adk"), "google-adk>=2.13,<3", "google-genai>=2.30,<3", "aiosqlite", "graphviz", "watchdog<7"
    )


@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=needs_engine)])
def test_agents_have_kernels_and_artifacts(directory: Path, tmp_path: Path, kind: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", PROGRAM, kind, str(tmp_path), IMAGE],
        env={**os.environ, "PYTHONPATH": str(directory)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    answers: dict[str, Any] = json.loads(ended.stdout)
    explored, warned, pictured, failed = answers["first"]["results"]
    assert "Total rows: 1" in explored[1]
    assert warned[0] == "OUTCOME_OK"
    assert "UserWarning: careful" in warned[1]
    assert pictured[1].startswith("Code execution result:\n42\n")
    assert "`outputs/cell-0003-1.png`" in pictured[1]
    assert failed[0] == "OUTCOME_FAILED"
    assert "ZeroDivisionError" in failed[1]
    assert failed[1].endswith("[kernelexec: error, state kept]")
    artifacts = answers["first"]["artifacts"]
    assert artifacts.keys() == {"user_n.csv", "outputs/cell-0003-1.png"}
    assert artifacts["user_n.csv"] == ["text/csv", 4]
    assert artifacts["outputs/cell-0003-1.png"][0] == "image/png"
    kept, died, following = answers["again"]["results"]
    assert kept[1] == "Code execution result:\n41\n"
    assert died[0] == "OUTCOME_FAILED"
    assert "goes on from its checkpoint" in died[1]
    assert "True" in following[1]
    assert "False" in answers["other"]["results"][0][1]
    assert "Timeout: it was ended" in answers["slow"]["results"][0][1]
    assert "False" in answers["fresh"]["results"][1][1]
    assert answers["open"] == 2
    assert answers["copied"]
    assert "InvalidPath" in answers["refused"]
    assert "Closed" in answers["closed"]


def test_without_the_adk_the_way_to_install_it_is_reported() -> None:
    command = [sys.executable, "-c", "import kernelexec.adapters.google_adk"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "pip install 'kernelexec[google-adk]'" in ended.stderr
