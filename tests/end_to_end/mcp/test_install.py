"""`kernelexec mcp install`: each client gets one entry, by its own command or in its settings, where nothing else changes."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from kernelexec.errors import InvalidConfig
from kernelexec.mcp.clients import (
    CLIENTS,
    find_client,
    find_settings_path,
    make_commands,
    make_http_entry,
    make_server_entry,
    make_stdio_entry,
    render_settings,
    write_entry,
)
from tests.conftest import Command
from tests.support.command_line import LOCAL, refused

URL = "http://127.0.0.1:8000/mcp"
ENTRY = {"command": "x", "args": ["a"]}
HOME = Path("/home/me")
#: A program of a client that notes its arguments, one list a line.
PROGRAM = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
if os.environ.get("FAILS"):
    sys.exit("a first line\\nthe client's own reason")
"""


def of_user(client: str, platform: str, **environ: str) -> str:
    path = find_settings_path(find_client(client), "user", platform=platform, home=HOME, cwd=Path("/p"), environ=environ)
    return path.as_posix()


def programs(directory: Path) -> str:
    """Put a program of each client into a directory; the PATH that finds them."""
    (directory / "bin").mkdir()
    for name in ("claude", "gemini"):
        program = directory / "bin" / name
        program.write_text(PROGRAM.format(python=sys.executable, log=str(directory / "log")))
        program.chmod(0o755)
    return f"{directory}/bin{os.pathsep}{os.environ['PATH']}"


def ran(directory: Path) -> list[list[str]]:
    log = directory / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command) -> Command:
    """`kernelexec mcp install` for a user whose home is ``tmp_path``, in its directory ``cwd``."""
    for name in ("XDG_CONFIG_HOME", "APPDATA", "CLAUDE_CONFIG_DIR", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path))
    return partial(in_process, tmp_path / "cwd", "mcp", "install")


@pytest.mark.parametrize(
    ("client", "linux", "darwin", "win32"),
    [
        ("claude-code", ".claude.json", ".claude.json", ".claude.json"),
        (
            "claude-desktop",
            ".config/Claude/claude_desktop_config.json",
            "Library/Application Support/Claude/claude_desktop_config.json",
            "AppData/Roaming/Claude/claude_desktop_config.json",
        ),
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json", ".cursor/mcp.json"),
        ("gemini", ".gemini/settings.json", ".gemini/settings.json", ".gemini/settings.json"),
    ],
)
def test_each_client_has_its_file_on_each_system(client: str, linux: str, darwin: str, win32: str) -> None:
    assert of_user(client, "linux") == f"{HOME}/{linux}"
    assert of_user(client, "darwin") == f"{HOME}/{darwin}"
    assert of_user(client, "win32") == f"{HOME}/{win32}"


def test_variables_that_move_a_clients_files_are_followed() -> None:
    assert of_user("claude-code", "linux", CLAUDE_CONFIG_DIR="/c") == "/c/.claude.json"
    assert of_user("claude-desktop", "linux", XDG_CONFIG_HOME="/c") == "/c/Claude/claude_desktop_config.json"
    assert of_user("claude-desktop", "win32", APPDATA="/roaming") == "/roaming/Claude/claude_desktop_config.json"
    assert of_user("claude-desktop", "darwin", APPDATA="/roaming", XDG_CONFIG_HOME="/c").startswith(f"{HOME}/Library/")


def test_claude_desktop_has_no_projects_and_no_addresses() -> None:
    with pytest.raises(InvalidConfig, match="no settings for a project"):
        find_settings_path(find_client("claude-desktop"), "project", platform="linux", home=HOME, cwd=HOME, environ={})
    with pytest.raises(InvalidConfig, match="only starts programs"):
        make_http_entry(find_client("claude-desktop"), URL, None)


def test_each_client_gets_the_form_of_a_server_over_http_that_it_knows() -> None:
    forms = {name: make_http_entry(client, URL, "TOKEN") for name, client in CLIENTS.items() if client.url}
    header = {"headers": {"Authorization": "Bearer ${TOKEN}"}}
    of_env = {"headers": {"Authorization": "Bearer ${env:TOKEN}"}}
    assert forms == {
        "claude-code": {"type": "http", "url": URL, **header},
        "cursor": {"type": "http", "url": URL, **of_env},
        "gemini": {"httpUrl": URL, **header},
    }


def test_each_client_gets_the_form_of_a_program_that_it_knows() -> None:
    entry = {"type": "stdio", "command": "python", "args": ["mcp"], "env": {"A": "b"}, "cwd": "/srv/agent"}
    shown = {name: make_stdio_entry(client, entry) for name, client in CLIENTS.items()}
    assert {name for name, created in shown.items() if "type" in created} == {"claude-code", "cursor"}
    assert not any("cwd" in created for created in shown.values())
    for name in CLIENTS:
        assert shown[name]["args"] == ["mcp", "--workspace", "/srv/agent/workspaces"]  # wherever it is started
        assert make_stdio_entry(CLIENTS[name], {**entry, "args": ["--workspace=x"]})["args"] == ["--workspace=x"]


def test_each_client_with_a_command_gets_its_arguments() -> None:
    entry = {"type": "stdio", "command": "python", "args": ["-m", "kernelexec", "mcp"], "env": {"A": "b"}, "cwd": "/srv"}
    entries = {name: make_stdio_entry(client, entry) for name, client in CLIENTS.items()}
    words = {name: make_commands(client, "user", "k", entries[name], exists=False) for name, client in CLIENTS.items()}
    args = ["-m", "kernelexec", "mcp", "--workspace", "/srv/workspaces"]
    assert words == {
        "claude-code": [
            [
                *("claude", "mcp", "add-json", "--scope", "user", "k"),
                json.dumps({"type": "stdio", "command": "python", "args": args, "env": {"A": "b"}}),
            ]
        ],
        "claude-desktop": [],
        "cursor": [],
        "gemini": [["gemini", "mcp", "add", "--scope", "user", "--env", "A=b", "k", "python", "--", *args]],
    }
    over_http = make_http_entry(CLIENTS["gemini"], URL, "TOKEN")
    assert make_commands(CLIENTS["gemini"], "user", "k", over_http, exists=False) == [
        [
            *("gemini", "mcp", "add", "--scope", "user", "--transport", "http"),
            *("--header", "Authorization: Bearer ${TOKEN}", "k", URL),
        ]
    ]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_is_shown_its_entry(client: str) -> None:
    known = find_client(client)
    entry = make_stdio_entry(known, {**make_server_entry(["--sudo"], cwd="/srv"), "env": {"DOCKER_HOST": 'unix:///a"b'}})
    assert json.loads(render_settings("k", entry)) == {"mcpServers": {"k": entry}}


def test_a_project_has_a_file_of_its_own(tmp_path: Path, install: Command) -> None:
    assert install("cursor", "--scope", "project").returncode == 0
    file = tmp_path / "cwd/.cursor/mcp.json"
    assert "kernelexec" in file.read_text()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_a_clients_command_is_run_and_its_settings_are_left_to_it(tmp_path: Path, install: Command) -> None:
    path = programs(tmp_path)
    for client in ("claude-code", "gemini"):
        done = install(client, *LOCAL, PATH=path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [words[0] for words in ran(tmp_path)] == ["claude", "gemini"]
    assert all("--isolation" in " ".join(words) for words in ran(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bin", "cwd", "log"]


def test_a_client_that_is_missing_or_fails_is_named_and_the_entry_is_shown(tmp_path: Path, install: Command) -> None:
    missing = install("claude-code", PATH="/nowhere")
    assert missing.returncode == 125
    assert "The command `claude` must be installed and on the PATH. Nothing was changed; the entry" in missing.stderr
    assert "kernelexec" in json.loads(missing.stdout)["mcpServers"]
    failed = install("gemini", PATH=programs(tmp_path), FAILS="1")
    assert failed.returncode == 125
    assert "`gemini mcp add` failed: the client's own reason. Nothing was changed" in failed.stderr
    assert "kernelexec" in json.loads(failed.stdout)["mcpServers"]


@pytest.mark.parametrize(
    ("client", "file", "content"),
    [
        ("claude-code", ".claude.json", '{"mcpServers": {"kernelexec": {}}}'),
        ("gemini", ".gemini/settings.json", '{"mcpServers": {"kernelexec": {}}}'),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {"kernelexec": {}}}'),
    ],
)
def test_a_server_of_that_name_stays_unless_it_is_to_be_replaced(
    tmp_path: Path, install: Command, client: str, file: str, content: str
) -> None:
    path, settings = programs(tmp_path), tmp_path / file
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(content)
    kept = install(client, PATH=path)
    assert (kept.returncode, kept.stdout) == (1, "")
    assert "use --replace to replace it" in kept.stderr
    assert settings.read_text() == content
    assert ran(tmp_path) == []
    assert install(client, "--replace", PATH=path).returncode == 0
    if client == "cursor":
        assert json.loads(settings.read_text())["mcpServers"]["kernelexec"]["command"] == sys.executable
    else:
        removed = [["claude", "mcp", "remove", "--scope", "user", "kernelexec"]] if client == "claude-code" else []
        assert ran(tmp_path)[:-1] == removed
        assert settings.read_text() == content


@pytest.mark.parametrize(("indent", "kept"), [(None, '  "'), (4, '    "'), ("\t", '\t"')])
def test_written_entries_keep_all_other_settings(tmp_path: Path, indent: int | str | None, kept: str) -> None:
    path = tmp_path / "mcp.json"
    before = {"theme": "dark \u00e9", "mcpServers": {"other": {"command": "o"}}, "last": [1.5, None]}
    path.write_text(json.dumps(before, indent=indent), encoding="utf-8")
    path.chmod(0o640)
    write_entry(path, "k", ENTRY)
    text = path.read_text(encoding="utf-8")
    after = json.loads(text)
    assert after["mcpServers"].pop("k") == ENTRY
    assert after == before
    assert text.splitlines()[1].startswith(kept)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_file_that_is_missing_or_empty_is_made_for_its_user(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "new/mcp.json"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
        path.chmod(0o600)
    write_entry(path, "k", ENTRY)
    assert json.loads(path.read_text()) == {"mcpServers": {"k": ENTRY}}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{\n  "mcpServers": {} // mine\n}', "must be plain JSON"),
        (b'{\n  "mcpServers": {},\n}', "must be plain JSON"),
        (b'{"mcpServers": []}', "with an object mcpServers"),
        (b"[]", "with an object mcpServers"),
        (b'{"a": 1,\n"a": 2}', "a name twice"),
        (b"\xef\xbb\xbf{}", "must be plain JSON"),
        (b'{\n"a": "\xff"}', "must be plain JSON"),
        (b"[" * 100_000, "must be plain JSON"),
    ],
)
def test_a_file_that_would_lose_something_stays_as_it_is(
    tmp_path: Path, install: Command, content: bytes, problem: str
) -> None:
    path = tmp_path / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_bytes(content)
    done = install("cursor")
    assert done.returncode == 125
    assert f"{path} cannot be changed: " in done.stderr
    assert problem in done.stderr
    assert "kernelexec" in json.loads(done.stdout)["mcpServers"]
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_link_is_followed_to_its_file_and_stays_one(tmp_path: Path) -> None:
    kept, link = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    kept.write_text("{}")
    link.symlink_to(kept)
    write_entry(link, "k", ENTRY)
    assert link.is_symlink()
    assert "k" in json.loads(kept.read_text())["mcpServers"]
    link.unlink()
    link.symlink_to(link)
    with pytest.raises((OSError, RuntimeError)):
        write_entry(link, "k", ENTRY)
    assert link.is_symlink()


def test_irregular_settings_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="no plain file"):
            write_entry(tmp_path / name, "k", ENTRY)


def test_a_loop_of_links_is_refused(tmp_path: Path, install: Command) -> None:
    path = tmp_path / ".cursor/mcp.json"
    path.parent.mkdir()
    path.symlink_to(path)
    done = install("cursor")
    assert done.returncode == 125
    assert f"{path} cannot be changed: " in done.stderr


def test_a_file_that_changes_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")

    def interfering(_path: Path, **_options: bool) -> None:
        path.write_text('{"newer": true}')

    monkeypatch.setattr(Path, "mkdir", interfering)
    with pytest.raises(InvalidConfig, match="it has changed meanwhile"):
        write_entry(path, "k", ENTRY)
    assert json.loads(path.read_text()) == {"newer": True}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--name", "a b"], "letters, digits"),
        (["--name", "-a"], "letters, digits"),
        (["--scope", "machine"], "user or project"),
        (["--url", "ftp://x"], "the server's address"),
        (["--url", "http://[x/"], "the server's address"),
        (["--url", "http://x:0/mcp"], "the server's address"),
        (["--url", "http://x:70000/mcp"], "the server's address"),
        (["--token-env", "TOKEN"], "for a server at --url"),
        (["--url", URL, "--token-env", "a-b"], "the name of an environment variable"),
        (["--url", URL, *LOCAL], f"{LOCAL[0]}: must not be set for a server at --url"),
        (["--http"], "clients cannot start an HTTP server"),
        (["--isolatoin", "local"], "--isolatoin"),
    ],
)
def test_invalid_options_of_install_are_refused_before_anything_is_written(
    tmp_path: Path, install: Command, options: list[str], problem: str
) -> None:
    assert problem in refused(install("cursor", *options))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_command_prints_writes_and_refuses(tmp_path: Path, install: Command) -> None:
    shown = install("cursor", "--print", *LOCAL)
    assert shown.returncode == 0
    assert shown.stderr.strip().endswith(str(tmp_path / ".cursor/mcp.json"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert install("cursor", "--", *LOCAL).returncode == 0
    path = tmp_path / ".cursor/mcp.json"
    assert json.loads(path.read_text()) == json.loads(shown.stdout)
    assert "did you mean 'cursor'" in refused(install("cursr"))
    assert "`kernelexec mcp-config` prints the entry for any other" in refused(install("codex"))
