"""The doctor: the kind of kernels in force and why, the engine, and every check by the real thing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import KINDS, Command
from tests.support.command_line import LOCAL, names, refused
from tests.support.engine import needs_engine

IMAGE: str = KINDS["container"]["container"]["image"]  # type: ignore[index]
CONTAINER = ("--isolation", "container", "--image", IMAGE)
NO_ENGINE = "unix:///missing/docker.sock"
FOUND: dict[str, dict[str, Any]] = {}


def findings(command: Command, tmp_path: Path, *args: str, **env: Any) -> tuple[int, dict[str, dict[str, Any]]]:
    done = command(tmp_path, "doctor", "--json", *args, **env)
    actual = json.loads(done.stdout)
    assert all(set(finding) == {"check", "ok", "found", "fix"} for finding in actual)
    return done.returncode, {finding["check"]: finding for finding in actual}


@pytest.fixture
def local(in_process: Command, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """What the doctor finds where kernels on this machine were chosen and no engine is there: it is asked once."""
    if not FOUND:
        status, actual = findings(in_process, tmp_path, KERNELEXEC_USE_DOCKER="no", DOCKER_HOST=NO_ENGINE)
        assert status == 0
        FOUND.update(actual)
    return FOUND


def test_the_doctor_finds_that_local_kernels_work(tmp_path: Path, in_process: Command) -> None:
    done = in_process(tmp_path, "doctor", *LOCAL)
    assert done.returncode == 0
    assert "FAIL" not in done.stdout
    for check in ("python", "runtime directory", "local kernel", "local: shell commands", "local: timeouts keep state"):
        assert any(line.split()[: 1 + len(check.split())] == ["ok", *check.split()] for line in done.stdout.splitlines()), check
    assert "container" not in done.stdout
    assert names(tmp_path) == []


def test_an_environment_in_the_directory_of_cells_is_a_finding_and_no_warning_of_each_command(
    tmp_path: Path, local: dict[str, dict[str, Any]], in_process: Command
) -> None:
    (own := tmp_path / "own").mkdir()
    path: dict[str, Any] = {"PYTHONPATH": str(own)}
    _, actual = findings(in_process, tmp_path, *LOCAL, **path)
    assert actual["optional: local: kernelexec itself"]["found"] == f"cells here can write {own}"
    assert not actual["optional: local: kernelexec itself"]["ok"]
    done = in_process(tmp_path, "exec", "1", *LOCAL, "--quiet", **path)
    assert (done.stdout, done.stderr) == ("1\n", "")
    [note] = json.loads(in_process(tmp_path, "exec", "1", *LOCAL, "--json", **path).stdout)["notes"]
    assert f"kernelexec itself is loaded from {own}" in note
    assert local["optional: local: kernelexec itself"]["ok"]


@needs_engine
def test_the_doctor_finds_that_containers_work(tmp_path: Path, in_process: Command) -> None:
    status, actual = findings(in_process, tmp_path, *CONTAINER)
    assert status == 0
    assert actual["choice"]["found"] == "container, by --isolation"
    assert actual["container image"]["found"] == IMAGE
    assert actual["container engine"]["found"].startswith("Docker ")
    assert ", cgroup v" in actual["container engine"]["found"]
    assert "optional: live restore" in actual
    required = ("container kernel", "container: shell commands", "container: timeouts keep state", "container: unix sockets")
    assert all(actual[check]["ok"] for check in required)
    assert "local kernel" not in actual


def test_the_doctor_examines_both_kinds_and_minds_the_one_in_force(local: dict[str, dict[str, Any]]) -> None:
    assert local["choice"]["found"] == "local, by KERNELEXEC_USE_DOCKER=no"
    assert local["local kernel"]["ok"]
    assert not local["optional: container engine"]["ok"]


def test_an_engine_that_is_not_there_fails_the_doctor(tmp_path: Path, in_process: Command) -> None:
    status, actual = findings(in_process, tmp_path, DOCKER_HOST=NO_ENGINE, KERNELEXEC_FORCE_CONTAINER="1")
    assert status == 1
    assert actual["choice"]["found"] == "container, by default"
    assert "there is no socket" in actual["container engine"]["found"]
    assert "KERNELEXEC_USE_DOCKER=0" in actual["container engine"]["fix"]
    assert "container kernel" not in actual
    assert actual["optional: local kernel"]["ok"]


@needs_engine
@pytest.mark.parametrize(
    ("image", "fix"),
    [
        ("kernelexec/web:none", "`kernelexec image build web --tag kernelexec/web:none` makes it."),
        ("kernelexec/web-sudo:none", "`kernelexec image build web --sudo --tag kernelexec/web-sudo:none` makes it."),
        ("kernelexec/wbe", "None of that name can be built (did you mean 'web'?)"),
        ("no.such/image", "`docker pull no.such/image` gets it"),
    ],
)
def test_a_missing_image_is_reported_and_never_pulled(image: str, fix: str, tmp_path: Path, in_process: Command) -> None:
    status, actual = findings(in_process, tmp_path, "--isolation", "container", "--image", image)
    assert status == 1
    assert actual["container image"]["found"] == f"{image} is missing"
    assert fix in actual["container image"]["fix"]


def test_the_doctor_speaks_json(local: dict[str, dict[str, Any]]) -> None:
    assert all(finding["ok"] for check, finding in local.items() if not check.startswith("optional"))
    assert local["python"]["found"] in sys.version


def test_the_doctor_says_what_to_fix(tmp_path: Path, in_process: Command) -> None:
    status, actual = findings(in_process, tmp_path, *LOCAL, "--python", "/missing/python")
    failed = [finding for check, finding in actual.items() if not finding["ok"] and "optional" not in check]
    assert status == 1
    assert [finding["check"] for finding in failed] == ["local kernel"]
    assert "/missing/python" in failed[0]["found"]
    assert failed[0]["fix"]


def test_contradictory_options_are_refused(tmp_path: Path, in_process: Command) -> None:
    assert "--image" in refused(in_process(tmp_path, "doctor", *LOCAL, "--image", "x"))
