"""The protocol's own conformance scenarios, in both eras, over HTTP: what fails is exactly what ``needs.toml`` accounts for."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

RUNNER = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NEEDS = Path(__file__).with_name("needs.toml")
_ASKING = 300.0
_PLACE = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


def run_scenarios(prefix: Path, env: dict[str, str], url: str) -> tuple[list[str], dict[str, int]]:
    """What is wrong with a server, and how many checks it passed by era.

    A listed scenario that passes although our server lacks its requirement is wrong too, and so is a scenario that did not run.
    """
    actual, passed = [], {}
    for era, needs in tomllib.loads(NEEDS.read_text()).items():
        out = prefix / "scenarios" / era
        runner = [str(prefix / "node_modules" / ".bin" / "conformance"), "server", "--url", url, "--suite", "all"]
        words = [*runner, "--spec-version", era, "-o", str(out)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_ASKING)
        ran = {match[1]: directory for directory in sorted(out.glob("server-*")) if (match := _PLACE.fullmatch(directory.name))}
        if len(ran) != needs["scenarios"]:
            actual.append(f"{era}: {len(ran)} scenarios ran, there are {needs['scenarios']}\n{done.stderr[-2000:]}")
        checks = [
            (name, check) for name, directory in ran.items() for check in json.loads((directory / "checks.json").read_text())
        ]
        failed = {
            f"{name}: {check['id']}": str(check.get("errorMessage")) for name, check in checks if check["status"] == "FAILURE"
        }
        accounted = {*needs["fixtures"], *needs["optional"]}
        actual += [f"{era}, {what}: {reason}" for what, reason in failed.items() if what not in accounted]
        actual += [f"{era}, {what}: it does not fail: take it out of {NEEDS.name}" for what in sorted(accounted - set(failed))]
        passed[era] = sum(check["status"] == "SUCCESS" for _, check in checks)
    return actual, passed
