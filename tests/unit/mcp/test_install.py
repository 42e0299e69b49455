"""`kernelexec mcp install`: each client's settings get one entry, in its own form, and nothing else in them changes."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernelexec.cli import installing
from kernelexec.cli.installing import install, ordered
from kernelexec.cli.stdio import CommandFailed
from kernelexec.config import jsonc
from kernelexec.config.client_settings import CLIENTS, client_of, reached, settings_path, started
from kernelexec.errors import InvalidConfig
from tests.end_to_end.cli.test_command import LOCAL

URL = "http://127.0.0.1:8000/mcp"
OURS = {"command": "x", "args": ["a"]}
HOME = Path("/home/me")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "APPDATA", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(client: str, *options: str, **more: Any) -> int:
    given: dict[str, Any] = {"name": "kernelexec", "scope": "user", "url": None, "variable": None} | more
    return install(ordered(client, options=options, **given))


def of_user(client: str, platform: str, **environ: str) -> str:
    path = settings_path(client_of(client), "user", platform=platform, home=HOME, here=Path("/p"), environ=environ)
    return path.as_posix()


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
        (
            "vscode",
            ".config/Code/User/mcp.json",
            "Library/Application Support/Code/User/mcp.json",
            "AppData/Roaming/Code/User/mcp.json",
        ),
        ("codex", ".codex/config.toml", ".codex/config.toml", ".codex/config.toml"),
        ("gemini", ".gemini/settings.json", ".gemini/settings.json", ".gemini/settings.json"),
    ],
)
def test_each_client_has_its_file_on_each_system(client: str, linux: str, darwin: str, win32: str) -> None:
    assert of_user(client, "linux") == f"{HOME}/{linux}"
    assert of_user(client, "darwin") == f"{HOME}/{darwin}"
    assert of_user(client, "win32") == f"{HOME}/{win32}"


def test_variables_that_move_a_clients_files_are_followed() -> None:
    assert of_user("claude-code", "linux", CLAUDE_CONFIG_DIR="/c") == "/c/.claude.json"
    assert of_user("codex", "darwin", CODEX_HOME="/c") == "/c/config.toml"
    assert of_user("vscode", "linux", XDG_CONFIG_HOME="/c") == "/c/Code/User/mcp.json"
    assert of_user("vscode", "win32", APPDATA="/roaming") == "/roaming/Code/User/mcp.json"
    assert of_user("vscode", "darwin", APPDATA="/roaming", XDG_CONFIG_HOME="/c").startswith(f"{HOME}/Library/")


@pytest.mark.parametrize(
    ("client", "file"),
    [
        ("claude-code", ".mcp.json"),
        ("cursor", ".cursor/mcp.json"),
        ("vscode", ".vscode/mcp.json"),
        ("codex", ".codex/config.toml"),
        ("gemini", ".gemini/settings.json"),
    ],
)
def test_a_project_has_a_file_of_its_own(home: Path, client: str, file: str) -> None:
    assert put(client, scope="project") == 0
    assert "kernelexec" in (home / file).read_text()
    assert [path for path in home.rglob("*") if path.is_file()] == [home / file]


def test_claude_desktop_has_no_projects_and_no_addresses() -> None:
    with pytest.raises(InvalidConfig, match="no settings for a project"):
        settings_path(client_of("claude-desktop"), "project", platform="linux", home=HOME, here=HOME, environ={})
    with pytest.raises(InvalidConfig, match="starts programs only"):
        reached(client_of("claude-desktop"), URL, None)


def test_each_client_gets_the_form_of_a_server_over_http_that_it_knows() -> None:
    forms = {name: reached(client, URL, "TOKEN") for name, client in CLIENTS.items() if client.url}
    header = {"headers": {"Authorization": "Bearer ${TOKEN}"}}
    of_env = {"headers": {"Authorization": "Bearer ${env:TOKEN}"}}
    assert forms == {
        "claude-code": {"type": "http", "url": URL, **header},
        "cursor": {"type": "http", "url": URL, **of_env},
        "vscode": {"type": "http", "url": URL, **of_env},
        "codex": {"url": URL, "bearer_token_env_var": "TOKEN"},
        "gemini": {"httpUrl": URL, **header},
    }


def test_each_client_gets_the_form_of_a_program_that_it_knows() -> None:
    entry = {"type": "stdio", "command": "python", "args": ["mcp"], "env": {"A": "b"}, "cwd": "/srv/agent"}
    shown = {name: started(client, entry) for name, client in CLIENTS.items()}
    assert {name for name, made in shown.items() if "type" in made} == {"claude-code", "cursor", "vscode"}
    assert {name for name, made in shown.items() if "cwd" in made} == {"vscode", "codex", "gemini"}
    for name in ("claude-code", "claude-desktop", "cursor"):
        assert shown[name]["args"] == ["mcp", "--workspace", "/srv/agent/workspaces"]  # wherever it is started
        assert started(CLIENTS[name], {**entry, "args": ["--workspace=x"]})["args"] == ["--workspace=x"]


@pytest.mark.parametrize("begin", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_written_is_read_again_with_all_that_was_there(home: Path, client: str, begin: str) -> None:
    found = client_of(client)
    path = settings_path(found, "user", platform="linux", home=home, here=home, environ={})
    path.parent.mkdir(parents=True, exist_ok=True)
    read = tomllib.loads if found.form == "toml" else json.loads
    before = {"theme": "dark", found.section: {"other": {"command": "o"}}}
    text = f'theme = "dark"\n[{found.section}.other]\ncommand = "o"\n' if found.form == "toml" else json.dumps(before)
    path.write_text(begin + text, encoding="utf-8")
    path.chmod(0o640)
    assert put(client, *LOCAL) == 0
    written = path.read_text(encoding="utf-8")
    assert written.startswith(begin)
    after = read(written.removeprefix(begin))
    entry = after[found.section].pop("kernelexec")
    assert after == before
    assert entry["command"] == sys.executable
    assert entry["args"][:3] == ["-m", "kernelexec", "mcp"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir() if each.is_file()] == [path.name]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{}\n", '{\n  "servers": {\n    "k": E\n  }\n}\n'),
        ('{"a": 1}', '{"a": 1, "servers": {"k": E}}'),
        ('{\n\t"a": 1 // one\n}', '{\n\t"a": 1, // one\n\t"servers": {\n\t\t"k": E\n\t}\n}'),
        (
            '{\r\n    "servers": {\r\n        "o": {}, // last\r\n    },\r\n}\r\n',
            '{\r\n    "servers": {\r\n        "o": {}, // last\r\n        "k": E,\r\n    },\r\n}\r\n',
        ),
        ('{\n  // "servers": {}\n  "servers": { /* none */ }\n}', None),
        ('{"servers": {"k": 1, "o": "}//"}}', '{"servers": {"k": E, "o": "}//"}}'),
        ("{\n  // nothing\n}", '{\n  // nothing\n  "servers": {\n    "k": E\n  }\n}'),
    ],
)
def test_comments_commas_and_layout_stay(before: str, after: str | None) -> None:
    made = jsonc.with_entry(before, "servers", "k", OURS)
    assert jsonc.parsed(made)["servers"]["k"] == OURS
    blank = str.maketrans("", "", " \t\r\n")
    if after is not None:
        assert made.translate(blank) == after.replace("E", json.dumps(OURS)).translate(blank)
    comment = re.compile(r"(?<!\})//[^\r\n]*|/\*.*?\*/")
    assert comment.findall(made) == comment.findall(before)
    assert ("\r\n" in made) == ("\r\n" in before)
    assert not made.replace("\r\n", "").count("\r")


def test_an_entry_goes_in_at_the_indentation_of_its_neighbours() -> None:
    before = '{\n    "servers": {\n        "o": {}\n    }\n}\n'
    assert jsonc.with_entry(before, "servers", "k", {"command": "x"}) == (
        '{\n    "servers": {\n        "o": {},\n        "k": {\n            "command": "x"\n        }\n    }\n}\n'
    )


def test_comments_of_toml_stay(home: Path) -> None:
    before = '# mine\nmodel = "m"  # the newest\n\n[mcp_servers.other]  # theirs\ncommand = "o"\n\n[profiles.a]\nx = 1\n'
    path = home / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(before)
    assert put("codex", url=URL, variable="TOKEN") == 0
    lines = path.read_text().splitlines()
    assert [line for line in lines if line in before.splitlines()] == before.splitlines()
    assert tomllib.loads(path.read_text())["mcp_servers"]["kernelexec"] == {"url": URL, "bearer_token_env_var": "TOKEN"}


@pytest.mark.parametrize("client", ["vscode", "codex"])
def test_a_server_of_that_name_stays_unless_it_is_to_be_replaced(home: Path, client: str) -> None:
    assert put(client, url=URL) == 0
    [path] = [path for path in home.rglob("*") if path.is_file()]
    before = path.read_bytes()
    with pytest.raises(CommandFailed, match="stays as it is: --replace replaces it") as told:
        put(client, url=f"{URL}2")
    assert told.value.status == 1
    assert path.read_bytes() == before
    assert put(client, url=f"{URL}2", name="second") == 0
    assert put(client, url=f"{URL}3", replace=True) == 0
    assert f'{URL}3"' in path.read_text()
    assert f'{URL}"' not in path.read_text()
    assert f'{URL}2"' in path.read_text()


@pytest.mark.parametrize(
    ("client", "content", "line", "why"),
    [
        ("vscode", b'{\n  "servers": {},\n  "a" 1\n}', 3, "a colon is expected"),
        ("vscode", b'{\n  "servers": [\n  ]\n}', 2, "servers: an object is expected"),
        ("vscode", b"[]", 1, "an object is expected"),
        ("vscode", b'{\n"a": 1', 2, "a comma or } is expected"),
        ("vscode", b'{"a": 1,\n"a": 2}', 2, "there twice"),
        ("vscode", b'{"a": 01}', 1, "a value is expected"),
        ("vscode", b"{}\n{}", 2, "more behind the end"),
        ("vscode", b'{\n"a": "\xff"}', 2, "not UTF-8"),
        ("vscode", b"[" * 100_000, 1, "nested too deeply"),
        ("codex", b"a = 1\nb = \n", 2, ""),
        ("codex", b"mcp_servers = 1\n", 1, "a table is expected"),
    ],
)
def test_a_malformed_file_is_told_by_its_line_and_stays(
    home: Path, capsys: pytest.CaptureFixture[str], client: str, content: bytes, line: int, why: str
) -> None:
    path = settings_path(client_of(client), "user", platform="linux", home=home, here=home, environ={})
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(CommandFailed) as told:
        put(client, url=URL)
    assert f"{path}, line {line}: " in str(told.value)
    assert why in str(told.value)
    assert URL in capsys.readouterr().out  # for whoever puts it in by hand
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_link_is_followed_to_its_file_and_stays_one(home: Path) -> None:
    kept = home / "dotfiles/settings.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    link = home / ".gemini/settings.json"
    link.parent.mkdir()
    link.symlink_to(kept)
    assert put("gemini") == 0
    assert link.is_symlink()
    assert "kernelexec" in json.loads(kept.read_text())["mcpServers"]
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(CommandFailed, match="it cannot be changed"):
        put("gemini")


def test_a_file_that_changes_meanwhile_is_not_overwritten(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / ".claude.json"
    path.write_text("{}")
    real = installing._owner

    def interfering(temporary: str) -> tuple[int, int]:
        path.write_text('{"newer": true}')
        return real(temporary)

    monkeypatch.setattr(installing, "_owner", interfering)
    with pytest.raises(CommandFailed, match="somebody changed it meanwhile"):
        put("claude-code")
    assert json.loads(path.read_text()) == {"newer": True}
    assert list(home.iterdir()) == [path]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"name": "a b"}, "letters, digits"),
        ({"scope": "machine"}, "user or project"),
        ({"url": "ftp://x"}, "the server's address"),
        ({"url": "http://[x/"}, "the server's address"),
        ({"variable": "TOKEN"}, "for a server at --url"),
        ({"url": URL, "variable": "a-b"}, "the name of an environment variable"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(home: Path, more: dict[str, Any], why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        put("cursor", **more)
    assert list(home.iterdir()) == []


def test_options_are_those_of_the_server(home: Path) -> None:
    with pytest.raises(CommandFailed, match="a server at --url has options of its own"):
        put("cursor", *LOCAL, url=URL)
    with pytest.raises(CommandFailed, match="clients do not start such a server"):
        put("cursor", "--http")
