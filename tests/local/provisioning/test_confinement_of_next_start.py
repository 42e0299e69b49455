"""What a cell leaves for the next start does not run outside of its confinement: programs, modules, links."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client.transports import StdioTransport

from kernelexec import Executor, KernelStartFailed, Session
from kernelexec.mcp.clients import make_server_entry
from tests.support.engine import needs_bubblewrap
from tests.support.mcp_clients import connected
from tests.support.night import at_night
from tests.support.virtual_environments import made_venv

#: Python that shows, if it can, that it ran with all rights of the user.
ESCAPE = "import os\ntry: open({!r}, 'w').write('out')\nexcept OSError: pass\n"
WAYS = [
    pytest.param("local", True, id="forked"),
    pytest.param("local", False, id="started", marks=pytest.mark.nightly),
    pytest.param("bubblewrap", False, id="bubblewrap", marks=needs_bubblewrap),
]


def in_ways(*values: str, gate: Collection[str]) -> list[Any]:
    """Each of the values in each way; the cases with these names are tried in the gate, the others at night."""
    cases = [(f"{value}-{way.id}", value, way) for value in values for way in WAYS]
    assert {name for name, _, _ in cases} >= set(gate)
    return [
        pytest.param(value, *way.values, id=name, marks=[*way.marks, *([] if name in gate else [pytest.mark.nightly])])
        for name, value, way in cases
    ]


@pytest.fixture
def escaped(tmp_path: Path) -> Iterator[Path]:
    """A file that a confined process cannot create; at the end it must not be there."""
    location = tmp_path / "escaped"
    yield location
    assert not location.exists()


def executor(location: Path, isolation: Any = "local", fork: bool = True, **more: Any) -> Executor:  # noqa: FBT001, FBT002
    return Executor(isolation, workspace=location / "workspaces", config={"fork_server": fork, **more})


def ends(session: Session) -> None:
    """Have a new kernel, which may not come to serve."""
    with suppress(KernelStartFailed):
        session.restart()
        session.execute("1 + 1")


@pytest.mark.parametrize(
    ("path", "isolation", "fork"), in_ways(".", "", "{workspace}", gate={".-forked", "-forked", "{workspace}-bubblewrap"})
)
def test_modules_in_a_workspace_that_is_on_the_import_path(
    path: str, isolation: str, fork: Any, tmp_path: Path, escaped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace := tmp_path / "w").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{path.format(workspace=workspace)}{os.pathsep}/nowhere")
    monkeypatch.chdir(workspace)
    with executor(tmp_path, isolation, fork) as created:
        session = created.session("a", work_dir=workspace)
        assert session.execute("1").ok
        for name in ("sitecustomize", "json", "socket", "pandas"):
            (workspace / f"{name}.py").write_text(ESCAPE.format(str(escaped)))
        ends(session)
    with executor(tmp_path, isolation, fork) as created, suppress(KernelStartFailed):
        created.session("b", work_dir=workspace).execute("1 + 1")


@pytest.mark.parametrize(
    ("named", "isolation", "fork"),
    in_ways("python", "venv in a context path", gate={"python-forked", "venv in a context path-bubblewrap"}),
)
def test_an_interpreter_that_cells_can_replace(named: str, isolation: str, fork: Any, tmp_path: Path, escaped: Path) -> None:
    venv = made_venv(tmp_path / "w" / "venv")
    location = next(venv.glob("lib/python*/site-packages"))
    (location / "all.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python = venv / "bin" / "python"
    if named == "python":
        options: dict[str, Any] = {"python": str(python)}
        workspace = tmp_path / "w"
    else:
        options = {"programs": {"venv": venv}, "context_paths": [{"path": tmp_path / "w", "permission": "write"}]}
        (workspace := tmp_path / "own").mkdir()
    with executor(tmp_path, isolation, fork, **options) as created:
        session = created.session("a", work_dir=workspace)
        assert session.execute("1").ok
        real = python.resolve()
        code = f"import os\nos.unlink({str(python)!r})\n"
        code += f"open({str(python)!r}, 'w').write('#!/bin/sh\\n(echo out > {escaped}) 2>&-\\nexec {real} \"$@\"\\n')\n"
        code += (
            f"os.chmod({str(python)!r}, 0o755)\nopen({str(location / 'zz.pth')!r}, 'w').write({ESCAPE.format(str(escaped))!r})"
        )
        assert session.execute(code).ok
        ends(session)
    with executor(tmp_path, isolation, fork, **options) as created, suppress(KernelStartFailed):
        created.session("b", work_dir=workspace).execute("1 + 1")


@needs_bubblewrap
def test_modules_in_the_current_directory_are_not_imported_at_a_start(
    tmp_path: Path, escaped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text(ESCAPE.format(str(escaped)))
    monkeypatch.chdir(tmp_path)
    code = "from kernelexec import Executor\nwith Executor('bubblewrap', config={'work_dir': '.'}) as made:\n "
    code += "print(made.session().execute('1').text)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("isolation", ["local", pytest.param("bubblewrap", marks=needs_bubblewrap)])
def test_an_environment_of_our_own_in_the_workspace_is_reported_or_kept(
    isolation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own := tmp_path / "w" / "own").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(own)])
    monkeypatch.setattr("kernelexec.provisioning.host.bubblewrap_backend.own_code_paths", lambda: [own])
    with executor(tmp_path, isolation, fork=False) as created:
        result = created.session("a", work_dir=tmp_path / "w").execute("open('own/new.py', 'w')")
    if isolation == "bubblewrap":
        assert "Read-only file system" in result.text
        return
    assert f"kernelexec itself is loaded from {own}, which cells can write" in " ".join(result.notes)
    with (
        executor(tmp_path, isolation, confinement={"level": "required"}) as created,
        pytest.raises(KernelStartFailed, match="cannot be confined as required: kernelexec itself is loaded from"),
    ):
        created.session("a", work_dir=tmp_path / "w").execute("1")


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key in a home."""
    (location := tmp_path / "home" / ".ssh").mkdir(parents=True)
    (location / "key").write_text("KEY")
    monkeypatch.setenv("HOME", str(location.parent))
    return location / "key"


@pytest.mark.parametrize("fork", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["forked", "started"])
@pytest.mark.parametrize("what", ["venv", "TMPDIR", "writable"])
def test_a_link_in_the_place_of_what_is_given_opens_nothing(what: str, fork: Any, tmp_path: Path, secret: Path) -> None:
    workspace = tmp_path / "w"
    location = workspace / "location"
    made_venv(location)
    value: dict[str, dict[str, Any]] = {
        "venv": {"programs": {"venv": location}},
        "TMPDIR": {"environment": {"set": {"TMPDIR": str(location)}}},
        "writable": {"confinement": {"writable": [workspace, location]}},
    }
    options = value[what]
    options.setdefault("confinement", {})["level"] = "required"
    with executor(tmp_path, "local", fork, **options) as created:
        session = created.session("a", work_dir=workspace)
        assert session.execute(f"import os; os.rename('location', 'old'); os.symlink({str(secret.parent)!r}, 'location')").ok
        read = f"open({str(secret)!r}).read(), open({str(secret.parent / 'made')!r}, 'w')"
        assert not session.execute(read).ok
        try:
            session.restart()
            assert not session.execute(read).ok
        except KernelStartFailed:  # a directory without programs is no environment
            pass
    assert [path.name for path in secret.parent.iterdir()] == ["key"]


def test_a_workspace_that_another_sessions_cell_replaces_is_refused(tmp_path: Path, secret: Path) -> None:
    (inner := tmp_path / "w" / "inner").mkdir(parents=True)
    with executor(tmp_path) as created:
        outside, inside = created.session("a", work_dir=tmp_path / "w"), created.session("b", work_dir=inner)
        assert inside.execute("1").ok
        assert outside.execute(f"import os; os.rename('inner', 'old'); os.symlink({str(secret.parent)!r}, 'inner')").ok
        with pytest.raises(KernelStartFailed, match="by a new link"):
            inside.restart()


@pytest.mark.parametrize("fork", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["forked", "started"])
def test_a_link_in_the_place_of_what_an_earlier_kernel_made_is_not_followed(fork: Any, tmp_path: Path) -> None:
    (victim := tmp_path / "victim").mkdir()
    with executor(tmp_path, "local", fork) as created:
        session = created.session("a")
        code = f"import os, shutil\nplace = os.environ['IPYTHONDIR']\nshutil.rmtree(place); os.symlink({str(victim)!r}, place)"
        assert session.execute(code).ok
        session.restart()
        assert session.execute("1 + 1").text == "2"
    assert list(victim.iterdir()) == []


def test_the_limits_of_the_owner_cannot_be_set(tmp_path: Path) -> None:
    with executor(tmp_path) as created:
        session = created.session("a")
        code = f"import os, resource\nresource.prlimit({os.getpid()}, resource.RLIMIT_NOFILE, (100, 100))"
        assert "PermissionError" in session.execute(code).text
        assert session.execute("resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)").ok
        own = "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))"
        assert session.execute(f"{own}\nresource.getrlimit(resource.RLIMIT_NOFILE)").text == "(99, 99)"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100


def test_our_command_imports_nothing_from_where_it_runs(tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise SystemExit('imported')")
    done = subprocess.run(
        [sys.executable, "-m", "kernelexec", "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_server_that_a_client_starts_reads_nothing_where_it_runs(tmp_path: Path, escaped: Path) -> None:
    for name in ("kernelexec/__init__", "kernelexec/__main__", "fastmcp", "sitecustomize", "usercustomize", "runpy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(ESCAPE.format(str(escaped)))
    (tmp_path / ".env").write_text("FASTMCP_LOG_LEVEL=NONE OF THESE\n")
    entry = make_server_entry(["--isolation", "local"], cwd=tmp_path)
    env = {"KERNELEXEC_RUNTIME_DIR": os.environ["KERNELEXEC_RUNTIME_DIR"]}
    transport = StdioTransport(entry["command"], entry["args"], env=env, cwd=entry["cwd"], log_file=tmp_path / "log")
    with connected(transport, "auto") as agent:
        assert "None" in agent.text("execute_code", code="import os; print(os.environ.get('FASTMCP_ENV_FILE'))")


@needs_bubblewrap
@pytest.mark.parametrize("relative", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["relative", "absolute"])
def test_a_program_of_bubblewraps_name_on_the_path(
    relative: Any, tmp_path: Path, escaped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs := tmp_path / "w" / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{'./bin' if relative else programs}{os.pathsep}{os.environ['PATH']}")
    with executor(tmp_path, "bubblewrap") as created:
        session = created.session("a", work_dir=tmp_path / "w")
        assert session.execute("1").ok
        (programs / "bwrap").write_text(f'#!/bin/sh\necho out > {escaped}\nexec /usr/bin/bwrap "$@"\n')
        (programs / "bwrap").chmod(0o755)
        session.restart()
        assert session.execute("1").ok


@needs_bubblewrap
@pytest.mark.parametrize("what", ["PYTHONPATH", *at_night("venv")])
def test_a_link_in_the_place_of_what_bubblewrap_is_to_show(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, home = tmp_path / "w", tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    (home / "diary").write_text("DIARY")
    made_venv(workspace / "envs" / "venv")
    monkeypatch.setenv("HOME", str(home))
    if what == "PYTHONPATH":
        monkeypatch.setenv("PYTHONPATH", str(workspace / "envs" / "venv"))
    options: dict[str, Any] = {"programs": {"venv": workspace / "envs" / "venv"}} if what == "venv" else {}
    with executor(tmp_path, "bubblewrap", **options) as created:
        session = created.session("a", work_dir=workspace)
        assert session.execute("open('envs/venv/new.py', 'w').close()").ok
        assert session.execute(
            "import os; os.rename('envs', 'old'); os.mkdir('envs'); os.symlink('../../home', 'envs/venv')"
        ).ok
        with suppress(KernelStartFailed):  # that is no environment
            session.restart()
            assert not session.execute(f"open({str(home / 'diary')!r}).read()").ok


#: Lines of a path file, for an interpreter of each name.
LINES = {"a path": "{}", "code": "import sys; sys.path.insert(0, {!r})"}


@pytest.mark.parametrize(
    ("which", "isolation", "fork"),
    in_ways(
        *(f"{named}, {line}" for named in ("python", "venv") for line in LINES),
        gate={"python, code-bubblewrap", "venv, a path-forked", "venv, code-forked"},
    ),
)
def test_an_environment_that_names_the_workspace_in_its_path_files(
    which: str, isolation: str, fork: Any, tmp_path: Path, escaped: Path
) -> None:
    named, _, line = which.partition(", ")
    workspace, venv = tmp_path / "w", made_venv(tmp_path / "venv")
    workspace.mkdir()
    location = next(venv.glob("lib/python*/site-packages"))
    (location / "all.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    (location / "project.pth").write_text(LINES[line].format(str(workspace)))
    options: dict[str, Any] = {"programs": {"venv": venv}} if named == "venv" else {"python": str(venv / "bin" / "python")}
    for name in ("sitecustomize", "pandas"):
        (workspace / f"{name}.py").write_text(ESCAPE.format(str(escaped)))
    with executor(tmp_path, isolation, fork, **options) as created:
        session = created.session("a", work_dir=workspace)
        assert session.execute("1").ok
        assert session.environment().prefix == str(venv)


#: Built for the next start: a library that every interpreter loads, as far as the loader looks there.
LIBRARY = """
#include <stdio.h>
__attribute__((constructor)) static void begin(void) { FILE *file = fopen("ESCAPED", "w"); if (file) fclose(file); }
"""


@pytest.mark.parametrize(
    ("where", "isolation", "fork"), in_ways("", ".", "{workspace}", gate={".-forked", "-forked", "{workspace}-bubblewrap"})
)
def test_libraries_in_a_workspace_where_the_loader_looks(
    where: str, isolation: str, fork: Any, tmp_path: Path, escaped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace := tmp_path / "w").mkdir()
    (workspace / "it.c").write_text(LIBRARY.replace("ESCAPED", str(escaped)))
    build = ["gcc", "-shared", "-fPIC", "-o", "libpreloaded.so", "it.c"]
    subprocess.run(build, cwd=workspace, check=True)
    named = where.format(workspace=workspace)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{named}{os.pathsep}/nowhere")
    monkeypatch.setenv("LD_PRELOAD", str(workspace / "libpreloaded.so"))
    with executor(tmp_path, isolation, fork) as created:
        session = created.session("a", work_dir=workspace)
        for number in range(2):
            if number:
                session.restart()
            result = session.execute("import os; print(os.environ['LD_LIBRARY_PATH'], os.environ['LD_PRELOAD'], os.getcwd())")
            assert result.text == f"{named}:/nowhere {workspace}/libpreloaded.so {workspace}\n"


def test_bytecode_and_a_users_modules_where_cells_can_write(
    tmp_path: Path, escaped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace := tmp_path / "w").mkdir()
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(workspace / "cache"))
    monkeypatch.setenv("PYTHONUSERBASE", str(workspace / "base"))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (packages := workspace / "base" / "lib" / version / "site-packages").mkdir(parents=True)
    (packages / "usercustomize.py").write_text(ESCAPE.format(str(escaped)))
    with executor(
        tmp_path, python=os.path.realpath(sys.executable), environment={"set": {"PYTHONPATH": _packages()}}
    ) as created:
        result = created.session("a", work_dir=workspace).execute("1 + 1")
    assert result.text == "2"
    assert "a fork server would import from" in " ".join(result.notes)


def _packages() -> str:
    return os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
