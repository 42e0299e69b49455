"""A provider from a module of the operator: its users, their rights, and invalid providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Command

pytestmark = pytest.mark.nightly

BROKEN = """
import os
def needs(): os.environ["MISSING_SECRET"]
def leaves(): raise SystemExit("no configuration")
number = 1
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--auth", "auth.py"], "must be MODULE:NAME or FILE.py:NAME of a provider"),
        (["--auth", "nowhere.py:provider"], "--auth nowhere.py cannot be imported: FileNotFoundError"),
        (["--auth", "no.such.module:provider"], "cannot be imported: ModuleNotFoundError"),
        (["--auth", "wrong.py:provider"], "--auth wrong.py cannot be imported: SyntaxError"),
        (["--auth", "lacking.py:provider"], "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (["--auth", "broken.py:provider"], "--auth broken.py:provider failed: AttributeError"),
        (["--auth", "broken.py:needs"], "failed: KeyError: 'MISSING_SECRET'"),
        (["--auth", "broken.py:leaves"], "failed: SystemExit: no configuration"),
        (["--auth", "broken.py:number"], "is of the class int; it must be an AuthProvider of fastmcp"),
        (["--auth", "kernelexec.mcp.callers:SCOPES"], "is of the class tuple"),
        (["--auth", "auth.py:provider", "--auth-scopes", "execute,all"], "'all' must be one of read, execute, admin"),
        (["--auth-scopes", "execute"], "--auth-scopes needs --auth"),
        (
            ["--auth", "broken.py:number", "--jwt-keys", "https://x", "--jwt-issuer", "i", "--jwt-audience", "a"],
            "cannot be combined",
        ),
        (["--host", "192.0.2.1"], "Use --tokens FILE (`kernelexec mcp-token` creates it), --jwt-keys or --auth"),
    ],
    ids=str,
)
def test_invalid_providers_are_refused_before_anything_is_served(
    options: list[str], message: str, tmp_path: Path, in_process: Command
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "wrong.py").write_text("def")
    (tmp_path / "lacking.py").write_text("import no_such_module")
    done = in_process(tmp_path, "mcp", "--http", "--isolation", "local", *options)
    assert done.returncode == 125
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", ["--tokens", "--auth", "--jwt-keys"])
def test_files_that_cells_can_change_do_not_decide_about_callers(option: str, tmp_path: Path, in_process: Command) -> None:
    own = tmp_path / "work" / "one"
    own.mkdir(parents=True)
    (own / "auth.py").write_text("raise SystemExit('it was run')")
    value = {"--tokens": "work/one/auth.py", "--auth": "work/one/auth.py:provider", "--jwt-keys": "work/one/auth.py"}[option]
    more = ["--jwt-issuer", "i", "--jwt-audience", "a"] if option == "--jwt-keys" else []
    (tmp_path / "link").symlink_to(own)
    for location in (value, value.replace("work/one", "link")):
        done = in_process(tmp_path, "mcp", "--http", "--isolation", "local", "--workspace", "work", option, location, *more)
        assert done.returncode == 125
        assert "must not be in a session's directory" in " ".join(done.stderr.split())


def test_a_provider_is_of_a_server_over_http(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "mcp", "--isolation", "local", "--auth", "auth.py:provider")
    assert (done.returncode, "auth: only for a server over HTTP" in done.stderr) == (125, True)
