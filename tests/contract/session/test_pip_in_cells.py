"""What people type to install a package: the next cell imports it, also after a restart, and commands have it too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelexec import Executor, Session
from tests.conftest import KINDS, WRAPPED
from tests.support.engine import needs_bubblewrap, needs_engine
from tests.support.night import at_night, named_cases
from tests.support.virtual_environments import made_venv, made_wheel, packages_of

#: What runs in containers in the gate too: how a kernel is had makes no difference to the other tests here.
ALSO_CONFINED = ("test_each_way_to_install_is_found_by_the_next_cell_and_after_a_restart[container-few]",)
#: Kernels that have no network, but the wheels of their workspace.
OFFLINE: dict[str, dict[str, Any]] = {
    "local": {},
    "bubblewrap": WRAPPED["bubblewrap"],
    "container": KINDS["container"],
}
#: What bubblewrap adds to a local kernel makes no difference here, so that the night has it.
MARKS: dict[str, Any] = {"bubblewrap": [needs_bubblewrap, pytest.mark.nightly], "container": needs_engine}
INDEX = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels"}
#: Cells and commands that install a package.
CELLS = {
    "pip_magic": "%pip install -q pip_magic",
    "bang": "!pip install bang",
    "bang_module": "!python -m pip install bang_module",
    "bash": "%%bash\npip install bash",
    "system": "import os; os.system('pip install system')",
    "run": "import subprocess; subprocess.run(['pip', 'install', 'run'], check=True)",
    "executable": "import subprocess, sys; subprocess.check_call([sys.executable, '-m', 'pip', 'install', 'executable'])",
    "listed": "open('requirements.txt', 'w').write('listed==1.0')\n%pip install -r requirements.txt",
}
#: Those that all kernels are tried with: how a kernel is had makes no difference to the others.
EVERYWHERE = ("pip_magic", "bang", "executable", "command")
#: One that pip does in the kernel, one by its module, one that is found in the path, and one with a file.
FEW = ["pip_magic", "executable", "command", "listed"]
#: Of the kernel's version, whatever else is on PATH.
UV_VENV = f"uv venv --python={sys.version_info[0]}.{sys.version_info[1]} .venv"
COMMANDS = {
    "command": "pip install command",
    "module": "python3 -m pip install module",
    "pip3": "pip3 install pip3",
    "versioned": f"pip{sys.version_info[0]}.{sys.version_info[1]} install versioned",
    "by_path": "pip install ./wheels/by_path-1.0-py3-none-any.whl",
}


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=MARKS.get(kind, ())) for kind in OFFLINE])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    config = {**OFFLINE[request.param], "environment": {"set": INDEX}}
    with Executor(request.param, workspace=tmp_path_factory.mktemp("workspaces"), config=config) as executor:
        opened = executor.session("pip")
        for name in (*CELLS, *COMMANDS, "late"):
            made_wheel(opened.workspace / "wheels", name, "1.0")
        made_wheel(opened.workspace / "wheels", "late", "2.0")
        yield opened


WAYS = {"few": FEW, "others": [name for name in (*CELLS, *COMMANDS) if name not in FEW]}


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """Local kernels that install from the wheels of their workspace."""
    config = {"environment": {"set": INDEX}}
    with Executor("local", workspace=tmp_path_factory.mktemp("offline"), config=config) as executor:
        yield executor


@pytest.fixture
def fresh(offline: Executor, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session of its own."""
    with offline.session(f"t{abs(hash(request.node.nodeid)) % 10**8}") as opened:
        yield opened


WHICH = "which python python3 pip pip3; python -c 'import sys; print(sys.executable)'"


def found(session: Session) -> set[str]:
    """The directories of programs that commands and cells find."""
    paths = [
        *session.execute_command(WHICH).stdout.split(),
        session.execute("import sys; print(sys.executable)").stdout.strip(),
    ]
    assert len(paths) == 6, paths
    return {path.rpartition("/")[0] for path in paths}


DESCRIBE = "import sys, sysconfig; print(sys.prefix, sys.exec_prefix, sysconfig.get_path('purelib'))"


def descriptions(session: Session) -> set[str]:
    """What cells and commands say of the environment, and the environment of pip."""
    cell, *commands, pip = [
        session.execute(DESCRIBE).stdout,
        session.execute_command(f'python -c "{DESCRIBE}"').stdout,
        session.execute_command(f'python3 -c "{DESCRIBE}"').stdout,
        session.execute_command("pip --version").stdout,
    ]
    assert cell.split()[0] in pip
    return {cell, *commands}


@pytest.mark.parametrize("ways", named_cases(WAYS, ["few"]))
def test_each_way_to_install_is_found_by_the_next_cell_and_after_a_restart(
    session: Session, request: pytest.FixtureRequest, ways: list[str]
) -> None:
    before = found(session)
    assert len(before) == len(descriptions(session)) == 1
    is_local = request.node.callspec.params["session"] == "local"
    names = [name for name in ways if is_local or name in EVERYWHERE]
    for name in names:
        result = session.execute(CELLS[name]) if name in CELLS else session.execute_command(COMMANDS[name])
        assert result.ok, (name, result.text)
        assert session.execute(f"import {name}; {name}.version").text == "'1.0'", name
    assert found(session) == before
    assert len(descriptions(session)) == 1
    session.restart()
    assert session.execute(f"import {', '.join(names)}; {names[-1]}.version").text == "'1.0'"
    assert session.execute_command(f"python -c 'import {', '.join(names)}'").ok
    assert found(session) == before


def test_commands_find_the_programs_of_the_interpreters_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as desktop clients start a server
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("a")
        directory = Path(sys.executable).parent
        assert session.execute_command("which pytest").stdout == f"{directory}/pytest\n"
        assert session.execute("import os; os.environ['PATH']").value.split(":")[1:] == [str(directory), "/usr/bin", "/bin"]


@pytest.mark.nightly
def test_another_version_than_the_loaded_one_is_reported_and_comes_with_a_restart(session: Session) -> None:
    result = session.execute("!pip install -q late==1.0\nimport late\nlate.version")
    assert (result.text, result.notes) == ("'1.0'", ())
    result = session.execute("!pip install -q late==2.0\nlate.version")
    assert result.text == "'1.0'"
    assert result.notes == ("late 2.0: installed, but cells keep the version that is loaded until the session restarts.",)
    session.restart()
    assert session.execute("import late; late.version").text == "'2.0'"


def test_preloaded_packages_are_replaced_by_a_restart(fresh: Session) -> None:
    made_wheel(fresh.workspace / "wheels", "six", "999.0")
    made_wheel(fresh.workspace / "wheels", "numpy", "999.0")
    result = fresh.execute("import numpy, six\n!pip install -q --no-deps six==999.0 numpy==999.0")
    assert result.notes == (
        "numpy 999.0, six 999.0: installed, but cells keep the version that is loaded until the session restarts.",
    )
    fresh.restart()
    assert fresh.execute("import numpy, six; print(six.version, numpy.version)").stdout == "999.0 999.0\n"
    assert fresh.execute_command("python -c 'import six; print(six.version)'").stdout == "999.0\n"


def test_an_upgrade_of_pip_leaves_that_of_the_interpreter(fresh: Session) -> None:
    made_wheel(fresh.workspace / "wheels", "pip", "999.0")
    before = sorted(
        path for directory in Path(sys.prefix).glob("lib/python*/site-packages/pip*") for path in directory.iterdir()
    )
    assert fresh.execute("%pip install -q --upgrade pip").ok
    assert fresh.execute_command("python -c 'import pip; print(pip.version)'").stdout == "999.0\n"
    assert all(path.exists() for path in before)


def test_a_kernel_keeps_the_packages_that_it_needs(fresh: Session) -> None:
    made_wheel(fresh.workspace / "wheels", "traitlets", "999.0")
    result = fresh.execute("!pip install -q --no-deps traitlets==999.0")
    assert result.notes == ("Only commands have traitlets 999.0: cells have the version that their kernel needs.",)
    fresh.restart()
    result = fresh.execute("import traitlets; traitlets.__version__ != '999.0'")
    assert result.text == "True"


def give_pip(venv: Path) -> None:
    """Put the pip of this environment into another one: its own way to have one takes some seconds."""
    for path in Path(sys.prefix).glob("lib/python*/site-packages/pip*"):
        (packages_of(venv) / path.name).symlink_to(path)
    program = venv / "bin" / "pip"
    program.write_text(f"#!{venv}/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    (venv / "bin" / "pip3").symlink_to("pip")


@pytest.mark.parametrize(
    ("has_pip", "names"),
    named_cases(
        {
            "with pip": (True, ["executable"]),
            "without pip": (False, ["system"]),
            "with pip, in each way": (True, ["system", "run"]),
            "without pip, in each way": (False, ["executable", "run"]),
        },
        ["with pip", "without pip"],
    ),
)
def test_an_environment_of_the_project_is_where_pip_installs(*, has_pip: bool, names: list[str], fresh: Session) -> None:
    cells = {name: CELLS[name] for name in names}
    for name in ("magic", "command", *cells):
        made_wheel(fresh.workspace / "wheels", name, "1.0")
    venv = made_venv(fresh.workspace / ".venv")
    if has_pip:
        give_pip(venv)
    assert fresh.execute("%pip install magic").ok
    assert fresh.execute_command("pip install command").ok
    for name, code in cells.items():
        assert fresh.execute(code).ok, name
    installed = {"magic", "command", *cells}
    assert {f"{name}.py" for name in installed} <= {path.name for path in packages_of(venv).iterdir()}
    prefix = venv if has_pip else sys.prefix  # of the Python whose pip installs
    answer = fresh.execute(f"import sys, {', '.join(installed)}; print(command.version, sys.prefix)")
    assert answer.stdout == f"1.0 {prefix}\n"
    if has_pip:
        assert found(fresh) == {str(venv / "bin")}
    other = made_venv(fresh.workspace / "other", system=True)
    assert fresh.execute_command(f"source {other}/bin/activate; python -m pip install magic").ok
    assert not fresh.execute_command("echo $PIP_PYTHON").stdout.strip()


def test_a_named_environment_is_where_pip_and_uv_install(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    venv = made_venv(tmp_path / "project" / "env")
    config = {"programs": {"venv": venv}, "environment": {"set": {**INDEX, "UV_NO_INDEX": "1", "UV_FIND_LINKS": "wheels"}}}
    with Executor("local", workspace=tmp_path / "work", config=config) as executor:
        session = executor.session("named", work_dir=tmp_path / "project")
        for name in ("executable", "magic", "bang"):
            made_wheel(tmp_path / "project" / "wheels", name, "1.0")
        for code in (CELLS["executable"], "%uv pip install magic", "!uv pip install bang"):
            result = session.execute(code)
            assert result.ok, result.text
        assert session.execute("import executable, magic, bang; bang.version").text == "'1.0'"
        assert {"executable.py", "magic.py", "bang.py"} <= {path.name for path in packages_of(venv).iterdir()}


@pytest.mark.parametrize("make", [pytest.param(UV_VENV, id="uv"), *at_night("python -m venv .venv")])
def test_an_environment_that_a_cell_makes_or_removes_counts_from_then_on(make: str, fresh: Session) -> None:
    for name in ("before", "within", "without"):
        made_wheel(fresh.workspace / "wheels", name, "1.0")
    made_wheel(fresh.workspace / "wheels", "before", "2.0")
    assert fresh.execute("%pip install before==1.0").ok
    assert fresh.execute(f"!{make}").ok
    result = fresh.execute("%pip install within before==2.0")
    assert result.ok, result.text
    assert any("also import from" in note for note in result.notes)
    assert {"within.py", "before.py"} <= {path.name for path in packages_of(fresh.workspace / ".venv").iterdir()}
    assert fresh.execute("import within, before; within.version + before.version").text == "'1.02.0'"
    fresh.restart()
    assert fresh.execute("import within, before; within.version + before.version").text == "'1.02.0'"
    assert fresh.execute("!rm -r .venv\n%pip install without").ok
    assert fresh.execute("import without; without.version").text == "'1.0'"
    assert len(found(fresh)) == 1


@pytest.mark.parametrize("kind", ["plain", "system", *at_night("own")])
def test_cells_import_from_all_directories_of_pip(kind: str, tmp_path: Path) -> None:
    """Else a package is "already satisfied" and not importable."""
    with Executor("local", workspace=tmp_path) as executor:
        session = executor.session("seen")
        if kind != "own":
            made_venv(session.workspace / ".venv", system=kind == "system")
        for_commands = session.execute_command("python -c 'import sys; print(*sys.path[1:], sep=chr(10))'").stdout.split()
        for_cells = session.execute("import sys; print(*sys.path, sep='\\n')").stdout.split()
        assert set(for_commands) <= set(for_cells)


def test_behind_a_prefix_cells_import_what_is_installed(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"programs": {"prefix": "env X=1"}}) as executor:
        session = executor.session("prefixed")
        wheels = session.workspace / "wheels"
        for name in ("installed", "executable"):
            made_wheel(wheels, name, "1.0")
        path = session.execute_command("echo $PATH,$VIRTUAL_ENV").stdout
        assert session.install("installed", wheels=wheels).ok
        assert session.execute(CELLS["executable"].replace("'install'", "'install', '--no-index', '-fwheels'")).ok
        for has_new_kernel in (False, True):
            if has_new_kernel:
                session.restart()
            assert session.execute("import installed, executable; installed.version").text == "'1.0'"
            assert session.execute_command("echo $PATH,$VIRTUAL_ENV").stdout == path


def test_an_environment_without_packages_goes_with_its_session(tmp_path: Path) -> None:
    with Executor("local", workspace=tmp_path, config={"environment": {"set": INDEX}, "notebook": False}) as executor:
        unused, used = executor.session("unused"), executor.session("used")
        made_wheel(used.workspace / "wheels", "kept", "1.0")
        assert used.execute("%pip install kept").ok
        assert unused.execute("1").ok
        assert (unused.workspace / ".kernelexec" / "venvs").exists()
        unused.close()
        used.close()
        assert list(unused.workspace.iterdir()) == []
        assert executor.session("used").execute("import kept; kept.version").text == "'1.0'"


def test_an_environment_that_a_cell_removes_is_made_again(fresh: Session) -> None:
    made_wheel(fresh.workspace / "wheels", "again", "1.0")
    fresh.execute_command("rm -r .kernelexec/venvs")
    assert fresh.execute("%pip install again").ok
    assert fresh.execute("import again; again.version").text == "'1.0'"


@pytest.mark.parametrize("kind", [pytest.param("local"), pytest.param("container", marks=needs_engine)])
def test_without_a_network_the_failure_names_its_cause_and_the_way_once(kind: str, tmp_path: Path) -> None:
    config: Any = {"local": {"confinement": {"network": False}}, "container": KINDS["container"]}[kind]
    with Executor(kind, workspace=tmp_path, config=config) as executor:
        session = executor.session("offline")
        runs = [
            session.execute("%pip install no-such-package-here"),
            session.execute("!pip install no-such-package-here"),
            session.execute_command("python -m pip install no-such-package-here"),
        ]
        for run in runs:
            assert "Retrying" not in run.text
            assert run.diagnosis is not None
            assert run.diagnosis.cause == "pip has no network here."
            assert "session.install" in run.diagnosis.hints[0]


def test_an_installation_for_a_user_is_explained(fresh: Session) -> None:
    for code in ("!pip install --user z", "%pip install --user z"):
        diagnosis = fresh.execute(code).diagnosis
        assert diagnosis is not None
        assert diagnosis.hints == ("Leave `--user` out.",)


def test_an_index_that_cannot_be_reached_is_the_cause(tmp_path: Path) -> None:
    index = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    uv = {"UV_NO_CONFIG": "1", "UV_INDEX_URL": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    with Executor("local", workspace=tmp_path, config={"environment": {"set": {**index, **uv}}}) as executor:
        session = executor.session("unreached")
        for code in ("%pip install z", "!pip install z", "!uv pip install z"):
            diagnosis = session.execute(code).diagnosis
            assert diagnosis is not None
            assert diagnosis.cause == "The package index cannot be reached.", code
            assert "session.install" in diagnosis.hints[0]


@pytest.mark.parametrize("kind", [pytest.param("local"), pytest.param("container", marks=needs_engine)])
def test_a_branch_has_the_packages_of_its_session_also_after_a_restart(kind: str, tmp_path: Path) -> None:
    config = {**OFFLINE[kind], "environment": {"set": {"PIP_NO_INDEX": "1"}}}
    with Executor(kind, workspace=tmp_path, config=config) as executor:
        session = executor.session("parent")
        for name in ("one", "two", "three"):
            made_wheel(session.workspace / "wheels", name, "1.0")
        assert session.execute("%pip install --find-links wheels one").ok
        branch = session.branch("branch")
        assert branch.execute("%pip install --find-links wheels two\nimport one, two; one.version + two.version").text.endswith(
            "'1.01.0'"
        )
        branch.restart()
        assert branch.execute("import one, two; one.version + two.version").text == "'1.01.0'"
        assert branch.install("three", wheels=session.workspace / "wheels").ok
        assert branch.execute("import three; three.version").text == "'1.0'"


@pytest.mark.parametrize("kind", [pytest.param("local"), pytest.param("container", marks=needs_engine)])
def test_uv_installs_into_the_environment_of_the_session(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    config = {**OFFLINE[kind], "environment": {"set": {"UV_NO_INDEX": "1", "UV_FIND_LINKS": "wheels"}}}
    with Executor(kind, workspace=tmp_path, config=config) as executor:
        session = executor.session("uv")
        for name, code in {"bang": "!uv pip install bang", "magic": "%uv pip install -q magic"}.items():
            made_wheel(session.workspace / "wheels", name, "1.0")
            result = session.execute(code)
            assert result.ok, result.text
            assert "warning" not in result.text
            assert session.execute(f"import {name}; {name}.version").text == "'1.0'", result.text
        session.restart()
        assert session.execute("import bang, magic; bang.version").text == "'1.0'"
