"""MCP clients before the server, each with a model of this machine: ``python -m tests.clients [NAME ...]``.

A script of ``scripts/`` names its packages, in the form of PEP 723, and after ``# lacks:`` the steps that its client cannot do.
Each gets an environment of its own, so it needs the package index. ``--environments DIRECTORY`` keeps these for the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.clients.model import serving
from tests.clients.scenario import STEPS
from tests.support.paths import ROOT

SCRIPTS = Path(__file__).parent / "scripts"
_INSTALL_SECONDS, _RUN_SECONDS = 900, 300
_METADATA = re.compile(r"^# /// script\n((?:# .*\n)*?)# ///$", re.MULTILINE)
_LACKS = re.compile(r"^# lacks: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client gave its model: the number of tools, and by step what was lacking."""

    client: str
    tools: int
    lacks: dict[str, list[str]]
    failure: str = ""

    def describe(self) -> str:
        """Return a line for people."""
        steps = [
            f"{step.title} {'lacks ' + ', '.join(self.lacks[step.title]) if self.lacks[step.title] else 'ok'}" for step in STEPS
        ]
        return f"{self.client}: {self.tools} tools; {'; '.join(steps)}"


def run_client(script: Path, environments: Path, workspace: Path) -> Outcome:
    """Install a client, run its script, and compare what its model got."""
    metadata = _METADATA.search(script.read_text(encoding="utf-8"))
    assert metadata is not None, f"{script} says not by which packages it runs"
    requirements = tomllib.loads(re.sub("^# ", "", metadata[1], flags=re.MULTILINE))["dependencies"]
    python = environments / script.stem / "bin" / "python"
    if not python.exists():
        venv.create(environments / script.stem, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
        subprocess.run(install, check=True, timeout=_INSTALL_SECONDS, capture_output=True, text=True)
    with serving() as (model, address):
        variables = {
            "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MODEL": address,
            "OPENAI_BASE_URL": f"{address}/v1",
            "ANTHROPIC_BASE_URL": address,
            **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "none"),
            **dict.fromkeys(
                ("OTEL_SDK_DISABLED", "CREWAI_DISABLE_TELEMETRY", "CREWAI_DISABLE_TRACKING", "DO_NOT_TRACK"), "true"
            ),
            **dict.fromkeys(("MCP_USE_ANONYMIZED_TELEMETRY", "HAYSTACK_TELEMETRY_ENABLED"), "false"),
            "HOME": str(workspace),
        }
        ended = subprocess.run(
            [str(python), "-P", str(script)],
            cwd=workspace,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_RUN_SECONDS,
        )
    answers = {step.title: answer for step, answer in zip(STEPS, model.answers, strict=False)}
    lacks = {step.title: step.lacks(answers.get(step.title)) for step in STEPS}
    failure = "" if ended.returncode == 0 and len(answers) == len(STEPS) else ended.stdout
    return Outcome(script.stem, len(model.tools), lacks, failure)


def main() -> int:
    """Run the named clients, or all; 0 if each model got what its script says, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--environments", type=Path, metavar="DIRECTORY")
    options = parser.parse_args()
    findings = []
    with tempfile.TemporaryDirectory(prefix="kx-clients-") as location:
        for script in sorted(SCRIPTS.glob("*.py")):
            if options.names and script.stem not in options.names:
                continue
            (workspace := Path(location, script.stem, "work")).mkdir(parents=True)
            try:
                outcome = run_client(script, options.environments or Path(location, "environments"), workspace)
            except subprocess.SubprocessError as exc:
                findings.append(f"{script.stem}: {exc}\n{getattr(exc, 'stderr', None) or getattr(exc, 'stdout', None) or ''}")
                continue
            print(outcome.describe(), flush=True)
            known = _LACKS.search(script.read_text(encoding="utf-8"))
            expected = set() if known is None else {title.strip() for title in known[1].split(",")}
            if (actual := {title for title, lacking in outcome.lacks.items() if lacking}) != expected or outcome.failure:
                about = f"lacks {sorted(actual)}, and its script says {sorted(expected)}"
                findings.append(f"{script.stem}: {about}\n{outcome.failure[-3000:]}")
    for finding in findings:
        print(f"clients: {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
