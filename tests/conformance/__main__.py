"""The MCP server before the protocol's own tools, over both transports and in both eras: ``python -m tests.conformance``.

The inspector looks at the tools, the conformance runner at the protocol, and the client of an old SDK uses both. It installs
them into a temporary directory, and node from the package index where this machine's is missing or too old, so it needs the
network: where that cannot be had, it says so and fails.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.conformance.inspector import ERAS, INSPECTOR, TOOLS, inspect
from tests.conformance.node import Unavailable, install_node, install_python, with_node
from tests.conformance.old_client import SDK, speak_old
from tests.conformance.scenarios import RUNNER, run_scenarios
from tests.support.mcp_server import serving

#: The exit status where the tools could not be had: nothing was learnt.
UNAVAILABLE = 2


def main() -> int:
    """Look at the server; 0 without a finding, 1 with one, 2 where the tools could not be had."""
    with tempfile.TemporaryDirectory(prefix="kx-conformance-") as location:
        prefix = Path(location)
        try:
            env = with_node(prefix)
            install_node(prefix, env, INSPECTOR, RUNNER)
            python = install_python(prefix / "old", SDK)
        except Unavailable as exc:
            print(f"conformance: its tools could not be had, so nothing was learnt: {exc}", file=sys.stderr)
            return UNAVAILABLE
        server = [sys.executable, "-m", "kernelexec", "mcp", "--isolation", "local", "--tools", "all"]
        server += ["--workspace", str(prefix / "workspaces")]
        with serving(prefix) as running:
            findings = inspect(prefix, env, server, running.url)
            more, passed = run_scenarios(prefix, env, running.url)
            findings += [*more, *speak_old(python, server, running.url, TOOLS)]
    for finding in findings:
        print(f"conformance: {finding}", file=sys.stderr)
    if not findings:
        print(f"conformance: {INSPECTOR} --strict finds nothing in {' and '.join(ERAS)}, over stdio and HTTP")
        print(f"conformance: {RUNNER}: {', '.join(f'{era}: {count} checks passed' for era, count in passed.items())}")
        print(f"conformance: {SDK} works over stdio and HTTP")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
