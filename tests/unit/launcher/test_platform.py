"""What differs between systems in the kernel's process: each choice for each system, and what comes of it."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelexec.launcher import owner, platform
from kernelexec.launcher.features.virtualenv import VirtualEnv
from kernelexec.launcher.platform import LauncherPlatform
from kernelexec.launcher.processes import tree
from kernelexec.launcher.sandbox import confinement

SYSTEMS = ("linux", "darwin", "win32")
UNIX = (("bash", "-c"), ("sh", "-c"))
GROUP: dict[str, object] = {"start_new_session": True}
#: What each system is, field by field, in the order of ``SYSTEMS``.
CHOICES: dict[str, tuple[object, object, object]] = {
    "shells": (UNIX, UNIX, (("powershell", "-NoProfile", "-Command"), ("cmd", "/c"))),
    "keeps_shell_state": (True, True, False),
    "new_group_options": (GROUP, GROUP, {"creationflags": 0x200}),
    "has_group_signals": (True, True, False),
    "stacks_signal": (signal.SIGRTMIN + 3, None, None),
    "adopts_orphans": (True, False, False),
    "has_pidfd": (True, False, False),
    "confinement_layers": (("no-new-privileges", "landlock", "capabilities", "no-network"), (), ()),
    "peak_unit_bytes": (1024, 1, 1),
    "programs_directory": ("bin", "bin", "Scripts"),
}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LauncherPlatform:
    """A system in the place of this machine's."""
    actual = LauncherPlatform.for_system(str(request.param))
    monkeypatch.setattr(platform, "PLATFORM", actual)
    return actual


def become(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "PLATFORM", LauncherPlatform.for_system(name))


@pytest.mark.parametrize("name", CHOICES)
def test_each_choice_is_made_for_each_system(name: str) -> None:
    assert tuple(getattr(LauncherPlatform.for_system(system), name) for system in SYSTEMS) == CHOICES[name]


def test_every_choice_is_in_the_table() -> None:
    assert {"name", *CHOICES} == set(LauncherPlatform.__dataclass_fields__)


def test_this_machine_is_the_one_that_python_names() -> None:
    assert LauncherPlatform.for_system(sys.platform) == platform.PLATFORM


#: Which shell runs commands, where these programs are there.
SHELLS = [
    ("linux", {"bash", "sh"}, ["bash", "-c"]),
    ("linux", {"sh"}, ["sh", "-c"]),
    ("darwin", {"bash", "sh"}, ["bash", "-c"]),
    ("win32", {"powershell", "cmd"}, ["powershell", "-NoProfile", "-Command"]),
    ("win32", {"cmd"}, ["cmd", "/c"]),
    ("win32", set[str](), ["cmd", "/c"]),
]


@pytest.mark.parametrize(("name", "programs", "shell"), SHELLS)
def test_the_first_shell_that_is_there_runs_commands(
    name: str, programs: set[str], shell: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(name, monkeypatch)
    for program in programs:
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert platform.default_shell() == shell


#: What a group gets of a signal, as calls of the module ``os``.
SENT = [
    ("linux", signal.SIGINT, ("killpg", 7, signal.SIGINT)),
    ("darwin", signal.SIGKILL, ("killpg", 7, signal.SIGKILL)),
    ("win32", signal.SIGINT, ("kill", 7, 1)),
    ("win32", signal.SIGTERM, ("kill", 7, signal.SIGTERM)),
    ("win32", signal.SIGKILL, ("kill", 7, signal.SIGTERM)),
]


@pytest.mark.parametrize(("name", "signum", "call"), SENT)
def test_a_group_is_signalled_as_the_system_can(
    name: str, signum: int, call: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    become(name, monkeypatch)
    sent: list[tuple[object, ...]] = []
    for function in ("kill", "killpg"):
        monkeypatch.setattr(os, function, lambda pid, number, function=function: sent.append((function, pid, number)))
    platform.signal_group(7, signum)
    assert sent == [call]


def test_this_process_leads_no_group_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpgrp", os.getpid)
    assert platform.leads_group()
    become("win32", monkeypatch)
    assert not platform.leads_group()


def test_stacks_are_written_on_a_signal_where_one_is_to_spare(
    system: LauncherPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []
    monkeypatch.setattr(faulthandler, "enable", lambda file: file.close())
    monkeypatch.setattr(faulthandler, "register", lambda signum, **_: heard.append(signum))
    owner.write_stacks_to(str(tmp_path / "stacks"))
    assert heard == [system.stacks_signal] * (system.name == "linux")


def test_memory_and_cpu_time_are_reported_where_the_system_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    peak, used = platform.peak_memory_bytes(), platform.cpu_seconds()
    assert peak is not None
    assert peak > 2**20
    assert used > 0
    become("darwin", monkeypatch)
    in_bytes = platform.peak_memory_bytes()
    assert in_bytes is not None
    assert in_bytes < peak
    monkeypatch.setattr(platform, "resource", None)
    assert platform.peak_memory_bytes() is None
    assert platform.cpu_seconds() > 0


def test_unread_bytes_of_a_pipe_are_counted_where_the_system_can(monkeypatch: pytest.MonkeyPatch) -> None:
    out, into = os.pipe()
    try:
        os.write(into, b"12345")
        assert platform.unread_bytes(out) == 5
        monkeypatch.setattr(platform, "termios", None)
        assert platform.unread_bytes(out) == 0
    finally:
        os.close(out)
        os.close(into)


def test_a_virtual_environment_has_its_programs_where_the_system_has_them(system: LauncherPlatform, tmp_path: Path) -> None:
    answer = {"venv": str(tmp_path)}
    with pytest.raises(SystemExit, match=f"it has no directory {system.programs_directory}\\."):
        VirtualEnv(answer).check()
    (tmp_path / system.programs_directory).mkdir()
    VirtualEnv(answer).check()
    path = VirtualEnv(answer).environment({})["PATH"]
    assert path.startswith(str(tmp_path / system.programs_directory) + os.pathsep)


def test_orphans_are_waited_for_where_they_come_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(os, "waitid", lambda *_: calls.append("waitid"))
    for name in SYSTEMS:
        become(name, monkeypatch)
        tree.reap_adopted()
    assert calls == ["waitid"]


ORDER: dict[str, Any] = {"writable": [], "hidden": [], "readable": []}


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_where_nothing_confines_each_layer_is_called_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    become(name, monkeypatch)
    actual = confinement.confine({**ORDER, "temporary": str(tmp_path)})
    assert actual["layers"] == []
    assert [text.rpartition(" (")[2] for text in actual["missing"]] == [f"not supported on {name})"] * 2
    for more in ({"required": True}, {"network": False}):
        with pytest.raises(SystemExit, match="cannot be confined as required"):
            confinement.confine({**ORDER, "temporary": str(tmp_path), **more})
