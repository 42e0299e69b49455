"""Containers in which code becomes root by sudo: which settings follow, and what an unknown user can do then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, KernelStartFailed, Session
from kernelexec.config import Config, load
from kernelexec.docker.client import Engine
from tests.support.engine import MINIMAL, SUDO, needs_engine
from tests.support.pace import slow, until

#: What ``CAPABILITIES`` are as the machine's kernel writes them.
KEPT = 0x200004FB


USER = "43210:43210"


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can start kernels of other users")


BOUNDS = "grep -E '^(CapEff|CapBnd|NoNewPrivs):' /proc/self/status"


def config_of(image: str, **options: Any) -> Config:
    return load("container", config={"container": {"image": image, **options}})


def bounds_of(message: str) -> dict[str, int]:
    return {name: int(value, 16) for name, _, value in (line.partition(":\t") for line in message.splitlines())}


@needs_engine
def test_a_missing_image_comes_with_the_command_that_builds_it(tmp_path: Path) -> None:
    config = config_of("kernelexec/minimal:not-built", sudo=True)
    how = r"`kernelexec image build minimal --sudo --tag kernelexec/minimal-sudo:not-built` makes it"
    with Executor(workspace=tmp_path, config=config) as executor, pytest.raises(KernelStartFailed, match=how):
        executor.session("a")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Return the settings of a user without an account."""
    config = config_of(SUDO, user=USER, sudo=True)
    with Executor(workspace=tmp_path_factory.mktemp("w"), config=config) as executor:
        yield executor.session("a")


@needs_engine
@needs_root
def test_a_user_whom_the_image_does_not_know_becomes_root(session: Session) -> None:
    assert session.execute_command("sudo -n id -u").text == "0\n"
    assert session.execute_command("id -u; id -g; sudo -n true && echo done").text == "43210\n43210\ndone\n"
    result = session.execute_command("sudo -n touch /etc/x && stat -c %u /etc/x")
    assert (result.text, result.exit_code) == ("0\n", 0)


@needs_engine
@needs_root
def test_root_can_do_what_installing_a_package_takes(session: Session) -> None:
    command = (
        "sudo -n useradd --system made-here && id -un made-here && sudo -n chown made-here /usr/local && stat -c %U /usr/local"
    )
    assert session.execute_command(command).text == "made-here\nmade-here\n"


@needs_engine
@needs_root
def test_the_user_has_no_capability_and_root_has_the_listed_ones(session: Session) -> None:
    assert bounds_of(session.execute_command(BOUNDS).text) == {"CapEff": 0, "CapBnd": KEPT, "NoNewPrivs": 0}
    actual = bounds_of(session.execute_command(f"sudo -n {BOUNDS}").text)
    assert actual == {"CapEff": KEPT, "CapBnd": KEPT, "NoNewPrivs": 0}


@needs_engine
@needs_root
def test_signal_ignoring_processes_of_root_end_with_their_command(session: Session) -> None:
    deaf = "sh -c 'trap \"\" HUP INT TERM; echo begun; sleep 600; sleep 600'"
    result = session.execute_command(f"sudo -n {deaf}", timeout=slow(3))
    assert (result.stdout, result.status, result.state) == ("begun\n", "error", "kept")
    until(lambda: "sleep" not in session.execute_command("cat /proc/[0-9]*/comm").text)


@needs_engine
@needs_root
@pytest.mark.nightly
def test_a_restarted_kernel_has_it_too_and_nothing_of_what_root_did_before(session: Session) -> None:
    assert session.execute_command("sudo -n touch /etc/before").exit_code == 0
    session.restart()
    assert session.execute_command("sudo -n id -u; ls /etc/before").text.startswith("0\n")
    assert session.execute_command("test -e /etc/before").exit_code == 1


@needs_engine
@needs_root
def test_a_root_that_can_only_be_read_has_an_account_that_can_only_be_read(tmp_path: Path) -> None:
    config = config_of(SUDO, user=USER, sudo=True, read_only_root=True)
    with Executor(workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        assert session.execute_command("sudo -n id -u").text == "0\n"
        assert session.execute_command("sudo -n touch /etc/x").exit_code == 1
        assert session.execute_command("sudo -n sh -c 'echo x >> /etc/passwd'").exit_code != 0
        with Engine() as engine:
            (created,) = [
                item
                for item in engine.list_containers("kernelexec.session=a")
                if str(tmp_path) in json.dumps(dict(item.labels))
            ]
            mounts = {item["Destination"]: item for item in engine.api.inspect_container(created.id)["Mounts"]}
        private = Path(created.labels["kernelexec.root"])
        for file in ("/etc/passwd", "/etc/group"):
            assert Path(mounts[file]["Source"]).is_relative_to(private)
            assert not Path(mounts[file]["Source"]).is_relative_to(created.labels["kernelexec.runtime"])
            assert mounts[file]["RW"] is False
    assert not private.exists()


@needs_engine
def test_root_needs_no_account(tmp_path: Path) -> None:
    with Executor(workspace=tmp_path, config=config_of(SUDO, user="0:0", sudo=True)) as executor:
        session = executor.session("a")
        assert session.execute_command("sudo -n id -u; grep -c kernel- /etc/passwd").text == "0\n0\n"


@needs_engine
@needs_root
def test_an_image_without_accounts_runs_kernels_all_the_same(tmp_path: Path) -> None:
    with Engine() as engine:
        image = f"kernelexec-test/no-accounts:{os.getpid()}"
        created = engine.create(None, {"image": MINIMAL, "command": ["rm", "/etc/passwd", "/etc/group"], "user": "0"}, {})
        try:
            engine.start(created)
            assert engine.api.wait(created)["StatusCode"] == 0
            engine.api.commit(created, *image.split(":"))
        finally:
            engine.remove(created)
        try:
            with Executor(workspace=tmp_path, config=config_of(image, user=USER, sudo=True)) as executor:
                assert executor.session("a").execute("1 + 1").text == "2"
        finally:
            engine.api.remove_image(image)


@needs_engine
@needs_root
def test_without_the_option_the_same_image_gives_no_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without_rules = load("container", config={"container": {"image": SUDO, "user": USER}, "rules": {"dangers": False}})
    with Executor(workspace=tmp_path, config=without_rules) as executor:
        session = executor.session("a")
        assert session.execute_command("sudo -n id -u").exit_code == 1
        assert session.execute_command("touch /etc/x").exit_code == 1
        assert bounds_of(session.execute_command(BOUNDS).text) == {"CapEff": 0, "CapBnd": 0, "NoNewPrivs": 1}
        assert session.execute_command("id -un").exit_code == 1
    assert "with sudo" not in capsys.readouterr().err
