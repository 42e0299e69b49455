"""Conformance suites of other frameworks, each in a pytest of its own, and packages that do not fit into the environment."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.engine import IMAGE
from tests.support.paths import ROOT

_SUITES = ROOT / "tests" / "end_to_end" / "frameworks" / "suites"
_SECONDS = 400
#: For a test that runs such a suite, and may install packages before.
runs_suite = pytest.mark.timeout(2 * _SECONDS + 10)


def install_beside(directory: Path, *requirements: str) -> Path:
    """Install packages, without those that they need, into a directory that only the caller's programs see."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory), *requirements]
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
    return directory


def run_suite(
    name: str, directory: Path, isolation: str, *, options: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Run the module ``name`` of the suites; return the outcome of each test ``Class.name``: ``passed``, or a reason."""
    report = directory / f"{name}.xml"
    environment = {**os.environ, "SUITE_ISOLATION": isolation, "SUITE_IMAGE": IMAGE, **(variables or {})}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    command += [f"--junit-xml={report}", f"--basetemp={directory / name}", *options, str(_SUITES / f"{name}.py")]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_SECONDS)
    assert report.exists(), ended.stdout + ended.stderr
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - our own
    return {f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}": _outcome(case) for case in cases}


def failures(outcomes: Mapping[str, str]) -> dict[str, str]:
    """Return the outcomes other than ``passed``."""
    return {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}


def _outcome(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if (element := case.find(kind)) is not None:
            return f"{kind}: {element.attrib.get('message', '')}"
    return "passed"
