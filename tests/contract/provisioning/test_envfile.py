"""Variables from a file, under all others; and all variables of this process, with a warning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig
from kernelexec.executor import notices
from kernelexec.provisioning.launch.environment import read_env_file
from tests.conftest import EVERY_KIND, KINDS
from tests.support.engine import needs_engine

LINES = """
# a comment
PLAIN=one
SPACED = two words \t
QUOTED="three four"
SINGLE='$five'
HALF="six
export EXPORTED=seven
EMPTY=
HASH=eight # nine
PLAIN=ten
no line
=eleven
1DIGIT=twelve
"""
READ = {
    "PLAIN": "ten",
    "SPACED": "two words",
    "QUOTED": "three four",
    "SINGLE": "$five",
    "HALF": '"six',
    "EXPORTED": "seven",
    "EMPTY": "",
    "HASH": "eight # nine",
}


def test_lines_are_read_and_bad_ones_reported_by_their_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "env").write_text(LINES)
    assert read_env_file(tmp_path / "env") == READ
    reported = [record for record in caplog.records if record.getMessage() == "kernelexec.env_file_line_ignored"]
    assert [(record.levelno, record.__dict__["line"]) for record in reported] == [
        (logging.WARNING, line) for line in (12, 13, 14)
    ]
    assert "eleven" not in repr([record.__dict__ for record in reported])
    read_env_file(tmp_path / "env")
    assert len(caplog.records) == 3
    (tmp_path / "env").write_text("PLAIN=changed\n")
    assert read_env_file(tmp_path / "env") == {"PLAIN": "changed"}
    assert read_env_file(None) == {}


@pytest.mark.parametrize("name", ["none", ".", "binary", "large"])
def test_a_file_that_cannot_be_read_is_refused_at_once(name: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe=\n")
    (tmp_path / "large").write_text("x" * (1024 * 1024 + 1))
    with pytest.raises(InvalidConfig, match=r"environment\.env_file: "):
        Executor("local", config={"environment": {"env_file": tmp_path / name}})


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_the_file_is_under_everything_else(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KX_HERE", "here")
    (tmp_path / "env").write_text("KX_FILE=file\nKX_HERE=file\nKX_SET=file\nHOME=/nowhere\n")
    rules = {"env_file": tmp_path / "env", "pass_names": ["KX_HERE"], "set": {"KX_SET": "set"}}
    with Executor(kind, workspace=tmp_path / "ws", config=KINDS[kind] | {"environment": rules}) as executor:
        code = "import os\n[os.environ[name] for name in ('KX_FILE', 'KX_HERE', 'KX_SET')], os.environ['HOME'] != '/nowhere'"
        assert executor.session("a").execute(code).text.strip() == "(['file', 'here', 'set'], True)"


@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=[needs_engine, pytest.mark.nightly])])
def test_all_variables_are_passed_on_request_and_that_is_reported_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_printed_notices", set())
    monkeypatch.setenv("KX_TOKEN", "a-token-of-this-process")
    monkeypatch.setenv("KX_SOURCE", "a-secret-by-reference")
    value: dict[str, Any] = KINDS[kind] | {"environment": {"pass_all": True}, "secrets": {"KEY": {"env": "KX_SOURCE"}}}
    for name in ("one", "two"):
        with Executor(kind, workspace=tmp_path / name, config=value) as executor:
            code = "import os, shutil\nprint(os.environ['KX_TOKEN'], 'KX_SOURCE' in os.environ, os.environ['KEY'])"
            result = executor.session("a").execute(f"{code}\nshutil.which('sh') is not None")
            assert result.stdout == "a-token-of-this-process False [secret KEY]\n"
            assert result.text.splitlines()[-1] == "True"
    assert capsys.readouterr().err.count("kernels get all variables of this process") == 1


def test_without_the_option_nothing_is_reported_and_nothing_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "_printed_notices", set())
    monkeypatch.setenv("KX_TOKEN", "a-token-of-this-process")
    with Executor("local", workspace=tmp_path) as executor:
        assert executor.session("a").execute("import os\n'KX_TOKEN' in os.environ").text.strip() == "False"
    assert "pass_all" not in capsys.readouterr().err
