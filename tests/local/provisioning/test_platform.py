"""What differs between systems on the driver's side: each choice for each system, and that no other module makes one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec.config import Config
from kernelexec.errors import InvalidConfig
from kernelexec.provisioning import platform
from kernelexec.provisioning.host.interpreters import check_venv, choose_interpreter
from kernelexec.provisioning.platform import Platform
from kernelexec.provisioning.runtime.processes import ProcessMarker
from tests.unit.provisioning.test_platform import become, system

__all__ = ["system"]


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_no_process_is_swept_where_processes_have_no_descriptors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = ProcessMarker()
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **mark.environ}) as process:
        try:
            with monkeypatch.context() as patch:
                become(name, patch)
                assert mark.sweep() == 0
            assert process.poll() is None
        finally:
            mark.sweep()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", ["linux", "darwin"])
def test_a_program_apart_leads_a_group_that_is_killed_as_a_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    become(name, monkeypatch)
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"], **platform.PLATFORM.process_group_options) as process:
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
        platform.kill_group(process.pid)
        assert process.wait() == -signal.SIGKILL


def test_without_groups_the_program_alone_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    become("win32", monkeypatch)
    with subprocess.Popen(["sleep", "600"]) as process:
        platform.kill_group(process.pid)
        assert process.wait() == -signal.SIGTERM


def test_a_virtual_environment_has_its_programs_where_the_system_has_them(system: Platform, tmp_path: Path) -> None:
    config = Config.model_validate({"isolation": "local", "programs": {"venv": tmp_path}})
    with pytest.raises(InvalidConfig, match=f"has no directory {system.venv_directory}:"):
        check_venv(config)
    directory = tmp_path / system.venv_directory
    directory.mkdir()
    check_venv(config)
    (directory / system.venv_interpreter).symlink_to(sys.executable)
    assert choose_interpreter(config) in {str(directory / system.venv_interpreter), config.python}
