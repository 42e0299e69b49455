"""Commands as another user of this machine: refused, or a process of that account."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from kernelexec import Executor, InvalidRequest
from tests.support.pace import slow

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


def test_the_callers_own_account_is_no_other(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        session.execute_command("cd /tmp", user=getpass.getuser())
        assert session.execute_command("pwd", user=os.getuid()).stdout == "/tmp\n"


@pytest.mark.parametrize("user", ["nobody", "no-such-account"])
def test_a_confined_kernel_becomes_no_other_user(tmp_path: Path, user: str) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        with pytest.raises(InvalidRequest, match=user):
            session.execute_command("touch ran", user=user)
        assert not (session.workspace / "ran").exists()


@needs_root
def test_root_without_confinement_can_run_commands_as_anyone(tmp_path: Path) -> None:
    config = {"confinement": {"level": "off"}, "budgets": {"grace": slow(2)}}
    with Executor("local", workspace=tmp_path, config=config) as executor:
        session = executor.session("a")
        for parent in (session.workspace, *session.workspace.parents):
            parent.chmod(parent.stat().st_mode | 0o005)
        session.execute_command("umask 077; echo x > private; cd /usr").raise_for_error()
        result = session.execute_command("id -u; pwd; echo $USER; cat private", user="nobody")
        assert (result.stdout, result.exit_code) == (f"65534\n{session.workspace}\nnobody\n", 1)
        ended = session.execute_command("trap '' INT TERM; echo begun; sleep 600; true", user="nobody", timeout=slow(2))
        assert (ended.stdout, ended.exit_code, ended.state) == ("begun\n", 124, "kept")
        assert session.execute_command("pwd").stdout == "/usr\n"
