"""What the rules do not see, or have nothing against, is harmless in a kernel that is confined: each is run for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelexec import Executor, Session
from kernelexec.rules.policy import CommandRules
from tests.unit.policy.test_evasions import commands

UNSEEN = commands("unseen.txt")


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory outside the workspaces."""
    directory = tmp_path_factory.mktemp("place")
    (directory / "victim").mkdir()
    (directory / "victim" / "file").write_text("as it was")
    return directory


@pytest.fixture(scope="module")
def session(location: Path) -> Iterator[Session]:
    with Executor("local", workspace=location / "workspaces") as executor:
        yield executor.session()


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session that is not confined."""
    options = {"confinement": {"level": "off"}}
    with Executor("local", workspace=tmp_path_factory.mktemp("free"), config=options) as executor:
        yield executor.session()


@pytest.mark.parametrize("text", UNSEEN)
def test_the_rules_let_it_by(text: str) -> None:
    assert CommandRules().check(text.replace("VICTIM", "/srv/place/victim")) is None


@pytest.mark.parametrize("text", UNSEEN)
def test_unseen_commands_harm_nothing_in_a_confined_session(session: Session, location: Path, text: str) -> None:
    result = session.execute_command(f"cd {session.workspace}; {text.replace('VICTIM', str(location / 'victim'))}")
    assert result.status in ("ok", "error")
    assert result.state == "kept"
    assert (location / "victim" / "file").read_text() == "as it was"
    assert [path.name for path in location.iterdir() if path.name != "workspaces"] == ["victim"]


@pytest.mark.parametrize("text", UNSEEN)
def test_unseen_commands_harm_without_confinement(free: Session, tmp_path: Path, text: str) -> None:
    (tmp_path / "victim").mkdir()
    file = tmp_path / "victim" / "file"
    file.write_text("as it was")
    (tmp_path / "work").mkdir()
    free.execute_command(f"cd {tmp_path / 'work'}; {text.replace('VICTIM', str(tmp_path / 'victim'))}")
    assert not file.exists() or file.read_text() != "as it was"
