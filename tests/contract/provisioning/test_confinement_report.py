"""The layers that confine a kernel are reported, allowed actions go on working, and a missing required layer stops it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernelexec import ExecutionResult, Executor
from kernelexec.config import Config
from kernelexec.errors import InvalidConfig, KernelStartFailed
from tests.conftest import KINDS
from tests.local.provisioning.test_confinement import LAYERS, SECRET
from tests.support.engine import needs_engine
from tests.support.kernelspecs import write
from tests.support.night import at_night
from tests.support.paths import ROOT

WITHOUT_LANDLOCK = ROOT / "tests/support/without_landlock.py"
#: What people do in a kernel.
WORKS = {
    "write in the workspace": "open('a', 'w').write('x'); open('a').read() == 'x'",
    "move between directories": "os.mkdir('d'); open('b', 'w').close(); os.rename('b', 'd/b'); os.path.exists('d/b')",
    "link in the workspace": "open('c', 'w').close(); os.link('c', 'e'); os.symlink('c', 'f'); os.path.exists('f')",
    "temporary files": "tempfile.NamedTemporaryFile().write(b'x') == 1 and tempfile.mkdtemp().startswith(os.environ['TMPDIR'])",
    "throw output away": "open('/dev/null', 'w').write('x') == 1",
    "random numbers": "len(open('/dev/urandom', 'rb').read(4)) == 4",
    "shared memory": "shared_memory.SharedMemory(create=True, size=8).unlink() is None",
    "locks between processes": "multiprocessing.Lock().acquire()",
    "a pool of processes": "multiprocessing.Pool(2).map(abs, [-1, -2]) == [1, 2]",
    "a terminal": "os.isatty(pty.openpty()[1])",
    "read the machine": "len(open('/etc/passwd').read()) > 0 and len(os.listdir('/')) > 0",
    "read beside the workspace": "open(public).read() == 'for all'",
    "signal what it started": "subprocess.Popen(['sleep', '60']).send_signal(15) is None",
    "look at itself": "'PATH' in open('/proc/self/environ').read() and len(os.listdir('/proc/self/fd')) > 2",
    "talk to itself": "socket.create_connection((s := socket.create_server(('127.0.0.1', 0))).getsockname()) is not s",
    "unix sockets": "socket.socket(socket.AF_UNIX).bind('socket') is None and os.path.exists('socket')",
    "import more": "__import__('sqlite3').connect('base').execute('create table t (x)') is not None",
}
_IMPORTS = "import multiprocessing, os, pty, socket, subprocess, tempfile\nfrom multiprocessing import shared_memory\n"


def test_usual_work_runs_in_a_confined_session(tmp_path: Path) -> None:
    (tmp_path / "public").write_text("for all")
    with Executor("local", workspace=tmp_path / "workspaces") as executor:
        session = executor.session("a")
        session.execute(_IMPORTS + f"public = {str(tmp_path / 'public')!r}")
        for what, code in WORKS.items():
            result = session.execute(code)
            assert result.text.strip() == "True", f"{what}: {result.text}"
            assert result.confinement == tuple(result.confinement)
            assert set(result.confinement) == LAYERS
            assert result.notes == ()


def test_a_command_is_killed_before_its_kernel_where_memory_is_short(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        assert session.execute_command("cat /proc/self/oom_score_adj").stdout == "1000\n"
        assert session.execute("open('/proc/self/oom_score_adj').read()").text != "'1000\\n'\n"


def test_chosen_paths_can_be_written_and_read(tmp_path: Path) -> None:
    for name in ("shared", "hidden/shown"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hidden" / "secret").write_text(SECRET)
    (tmp_path / "hidden" / "shown" / "file").write_text("seen")
    confinement = {
        "writable": [tmp_path / "shared"],
        "hidden": [tmp_path / "hidden"],
        "readable": [tmp_path / "hidden" / "shown"],
    }
    with Executor("local", workspace=tmp_path / "workspaces", config={"confinement": confinement}) as executor:
        session = executor.session("a")
        assert session.execute(f"open({str(tmp_path / 'shared' / 'made')!r}, 'w').write('x')").ok
        assert session.execute(f"open({str(tmp_path / 'hidden' / 'shown' / 'file')!r}).read()").text == "'seen'"
        refused = session.execute(f"open({str(tmp_path / 'hidden' / 'secret')!r})")
        assert refused.diagnosis is not None
        assert refused.diagnosis.kind == "PermissionError"
        assert "TMPDIR" in refused.diagnosis.hints[0]


def test_a_kernel_that_is_not_confined_does_what_its_user_can(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path / "workspaces", config={"confinement": {"level": "off"}}) as executor:
        result = executor.session("a").execute(f"open({str(tmp_path / 'made')!r}, 'w').write('x')")
        assert result.ok
        assert result.confinement == ()


def test_kernels_of_other_languages_are_confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "jupyter", "stock", [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "stock")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    with Executor("local", workspace=tmp_path / "workspaces") as executor:
        session = executor.session("a")
        result = session.execute(f"open({str(tmp_path / 'made')!r}, 'w')", language="stock")
        assert "PermissionError" in result.text
        assert set(result.confinement) == LAYERS
        assert session.execute(f"import os; os.kill({os.getpid()}, 0)", language="stock").status == "error"


@pytest.mark.parametrize("language", ["python", *at_night("stock")])
def test_a_profile_of_ipython_is_configuration_and_nothing_is_written_to_it(
    language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "first.py").write_text("begun = 6")
    (profile / "ipython_config.py").write_text("c.InteractiveShellApp.exec_lines = ['greeting = 7']")
    sqlite3.connect(profile / "history.sqlite").execute("create table of_old (x)").connection.close()
    (profile.parent / "beside").write_text("8")
    before = sorted(tmp_path.rglob("*"))
    write(tmp_path / "jupyter", "stock", [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "stock")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(profile.parent))
    code = "import os\nprint(begun, greeting, open(os.environ['IPYTHONDIR'] + '/beside').read())"
    with Executor("local", workspace=tmp_path / "jupyter") as executor:
        for _ in range(2):
            session = executor.session("a")
            assert session.execute(code, language=language).stdout == "6 7 8\n"
            session.restart()
    assert [path for path in sorted(tmp_path.rglob("*")) if tmp_path / "jupyter" not in (path, *path.parents)] == before


def test_a_kernel_that_needs_ports_is_refused_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "jupyter", "porty", ["/bin/cat", "{connection_file}"], "porty")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    with Executor("local", workspace=tmp_path / "workspaces", config={"confinement": {"network": False}}) as executor:
        session = executor.session("a")
        with pytest.raises(KernelStartFailed, match=r"porty.*confinement\.network"):
            session.execute("1", language="porty")
        result = session.execute("1+1")
        assert result.text == "2"
        assert set(result.confinement) == LAYERS | {"no-network"}


@pytest.mark.parametrize("kind", [pytest.param("container", marks=needs_engine)])
def test_a_container_confines_in_its_own_way(kind: str, tmp_path: Path) -> None:
    with Executor(kind, workspace=tmp_path, config=KINDS[kind]) as executor:
        assert executor.session("a").execute("1").confinement == ()


def test_no_confinement_does_not_do_without_a_network() -> None:
    with pytest.raises(InvalidConfig, match="level must be 'best' or 'required' if network=False"):
        Executor("local", config={"confinement": {"level": "off", "network": False}})
    assert Config().confinement.level == "best"


def _without_landlock(tmp_path: Path, **options: object) -> subprocess.CompletedProcess[str]:
    code = f"""
from kernelexec import Executor
from kernelexec.errors import KernelStartFailed
with Executor("local", workspace={str(tmp_path)!r}, config={{"confinement": {options!r}}}) as executor:
    try:
        session = executor.session("a")
        print(session.execute("1+1").to_json())
        print(session.execute("1+1").to_json())
    except KernelStartFailed as exc:
        print("refused:", exc)
"""
    argv = [sys.executable, str(WITHOUT_LANDLOCK), sys.executable, "-c", code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_missing_layers_are_reported_once(tmp_path: Path) -> None:
    done = _without_landlock(tmp_path)
    first, second = map(ExecutionResult.from_json, done.stdout.splitlines())
    assert first.text == second.text == "2"
    assert set(first.confinement) == LAYERS - {"landlock"}
    assert [note for note in first.notes if "not confined in every way" in note and "no Landlock" in note]
    assert second.notes == ()


def test_required_but_missing_layers_prevent_the_start(tmp_path: Path) -> None:
    done = _without_landlock(tmp_path, level="required")
    assert "refused:" in done.stdout
    assert "cannot be confined as required" in done.stdout
    assert "no Landlock" in done.stdout
