"""What a person reads on stderr: the first container of a process, and every one that goes."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelexec import Executor
from kernelexec.events import KernelChanged, KernelContainer, SessionClosing
from kernelexec.executor.notices import warn_about_environment, warn_about_isolation
from kernelexec.executor.registry import ContainerNotices
from tests.conftest import KINDS
from tests.support.engine import needs_engine

WHERE = KernelContainer("kernelexec-a-1", "0123456789ab", "an/image", "none", (("/ws", "/ws", False), ("/data", "/data", True)))
STARTED = KernelChanged("a", 1, "started", container=WHERE)
FIRST = "kernelexec: code runs in containers of an/image, network: none.\n"


@pytest.fixture(autouse=True)
def no_notice_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelexec.executor.notices._printed_notices", set())


def test_the_first_container_of_a_process_is_reported(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kernelexec"):
        for _ in range(2):
            ContainerNotices(quiet=False)(STARTED)
    assert capsys.readouterr().err == FIRST
    facts = {"session": "a", "container": "kernelexec-a-1", "image": "an/image", "network": "none"}
    for record in caplog.records:
        assert record.message == "kernelexec.container_started"
        assert record.__dict__.items() >= (facts | {"mounts_written": 1, "mounts_read": 1, "sudo": False}).items()
    assert len(caplog.records) == 2


def test_a_container_with_sudo_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    ContainerNotices(quiet=False)(replace(STARTED, container=replace(WHERE, sudo=True)))
    with_sudo = FIRST.replace("an/image,", "an/image, with sudo,")
    assert capsys.readouterr().err == with_sudo


def test_the_log_has_the_containers_that_go_with_their_session(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    notices = ContainerNotices(quiet=False)
    notices(STARTED)
    notices(KernelChanged("a", 1, "started", language="other", container=WHERE))
    with caplog.at_level(logging.INFO, "kernelexec"):
        notices(SessionClosing("a"))
        notices(KernelChanged("a", 1, "died", "killed"))
        notices(KernelChanged("a", 1, "died", "killed", language="other"))
        notices(SessionClosing("a"))
    [record] = caplog.records
    assert record.message == "kernelexec.containers_removed"
    assert record.__dict__["containers"] == "kernelexec-a-1, kernelexec-a-1"
    assert capsys.readouterr().err == FIRST


def test_a_quiet_executor_reports_by_the_logger_only(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    notices = ContainerNotices(quiet=True)
    with caplog.at_level(logging.INFO, "kernelexec"):
        notices(STARTED)
        notices(SessionClosing("a"))
    assert capsys.readouterr().err == ""
    assert [record.message for record in caplog.records] == ["kernelexec.container_started", "kernelexec.containers_removed"]


def test_a_kernel_on_this_machine_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    notices = ContainerNotices(quiet=False)
    notices(KernelChanged("a", 1, "started"))
    notices(SessionClosing("a"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("isolation", ["local", "bubblewrap", "container-host"])
def test_where_code_runs_is_one_short_line_once(
    isolation: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        warn_about_isolation(isolation, quiet=False)
    line = capsys.readouterr().err
    assert line.startswith("kernelexec: code runs ")
    assert line.endswith("`kernelexec doctor` shows its limits.\n")
    assert len(line) <= 101
    with caplog.at_level(logging.DEBUG, "kernelexec"):
        warn_about_isolation(isolation, quiet=True)
        warn_about_environment(everything=True, quiet=True)
    assert capsys.readouterr().err == ""
    assert [record.message for record in caplog.records] == ["kernelexec.isolation", "kernelexec.environment_passed"]
    warn_about_environment(everything=True, quiet=False)
    assert 50 < len(capsys.readouterr().err) <= 101


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_takes_nothing_is_no_reason_not_to_run(stderr: str) -> None:
    code = (
        "from kernelexec.events import KernelChanged, KernelContainer, SessionClosing\n"
        "from kernelexec.executor.registry import ContainerNotices\n"
        "notices = ContainerNotices(quiet=False)\n"
        f"notices({STARTED!r})\nnotices(SessionClosing('a'))\nprint('went on')"
    )
    done = subprocess.run(["sh", "-c", f'"$@" {stderr}', "sh", sys.executable, "-c", code], capture_output=True, check=False)
    assert b"went on" in done.stdout


@needs_engine
def test_a_real_session_says_in_one_line_where_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = KINDS["container"]
    with (
        caplog.at_level(logging.INFO, "kernelexec"),
        Executor(isolation="container", workspace=tmp_path, config=config) as executor,
    ):
        executor.session("a")
    image = config["container"]["image"]  # type: ignore[index]
    assert capsys.readouterr().err == f"kernelexec: code runs in containers of {image}, network: none.\n"
    [removal] = [record for record in caplog.records if record.message == "kernelexec.containers_removed"]
    assert re.fullmatch(r"kernelexec-a-[0-9a-f]{8}", removal.__dict__["containers"])
