"""What sessions have installed before their first cell: in order, and a failure costs no session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, InvalidConfig
from tests.conftest import KINDS
from tests.support.engine import needs_engine
from tests.support.virtual_environments import made_wheel


def config(**preinstall: object) -> dict[str, Any]:
    return {"programs": {"preinstall": preinstall}}


@pytest.mark.parametrize("kind", ["local", pytest.param("container", marks=[needs_engine, pytest.mark.nightly])])
def test_the_first_cell_finds_what_was_to_be_there(kind: str, tmp_path: Path) -> None:
    options = {**KINDS[kind], **config(python=[str(made_wheel(tmp_path / "wheels", "lower", "1.0"))])}
    with Executor(kind, workspace=tmp_path / "work", config=options) as executor:
        result = executor.session().execute("import lower; print(lower.version)")
        assert (result.stdout, result.execution_count) == ("1.0\n", 1)
        assert not any("preinstall" in note for note in result.notes)


@needs_engine
def test_without_a_network_each_failure_is_reported_and_the_session_is_there(tmp_path: Path) -> None:
    options = {**KINDS["container"], **config(system=["jq"], python=["missing"], npm=["left-pad@1.3.0"])}
    with Executor("container", workspace=tmp_path / "work", config=options) as executor:
        result = executor.session().execute("1 + 1")
        assert result.text == "2"
        reported = [note for note in result.notes if note.startswith("programs.preinstall")]
        assert reported[0] == "programs.preinstall.system (jq) was not installed: the session has no network"
        assert reported[1].startswith("programs.preinstall.python (missing) was not installed:")
        assert "has no network to install from" in reported[1]
        assert reported[2] == "programs.preinstall.npm (left-pad@1.3.0) was not installed: the session has no network"


def test_the_machines_own_system_is_left_alone(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path / "work", config=config(system=["jq"])) as executor:
        result = executor.session().execute("1 + 1")
        assert any("(jq) was not installed: system packages are installed in containers only" in note for note in result.notes)


def test_npm_that_fails_is_reported_with_its_last_output(tmp_path: Path) -> None:
    options = config(npm=["left-pad"])
    variables = {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_fetch_retries": "0", "npm_config_cache": "cache"}
    with Executor("local", workspace=tmp_path / "work", config={**options, "environment": {"set": variables}}) as executor:
        result = executor.session().execute("1 + 1")
        [reported] = [note for note in result.notes if note.startswith("programs.preinstall.npm (left-pad) was not installed:")]
        assert len(reported) < 500
        assert result.text == "2"


@pytest.mark.parametrize("kind", ["system", "npm"])
@pytest.mark.parametrize("name", ["-y", "a;b", "$(x)", "a b", "--target=/", "../x", "/etc/x.deb", ""])
def test_invalid_names_of_packages_are_refused(kind: str, name: str) -> None:
    with pytest.raises(InvalidConfig, match=rf"programs\.preinstall\.{kind}"):
        Executor("local", config={"programs": {"preinstall": {kind: [name]}}})
